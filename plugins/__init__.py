"""Pipeline stages: detectors, trackers, analysers and sinks."""
