"""Cambricon's CNRT 4, which runs offline models on their cards, and CNDEV, which tells how a card fares."""
