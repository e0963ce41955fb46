"""The conversion of a model's layers: which classes replace which, and what is gained."""
