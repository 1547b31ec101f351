"""The on-device agent: pipelines, MQTT, telemetry, event spool, supervision."""
