"""Time calls alternately (``timing``), and PyTorch's layers beside normgrad's (``layers``)."""
