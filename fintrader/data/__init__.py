"""Bars to `MarketTensors`: sources, sessions, cleaning, features, tensors, store."""
