"""Time calls by turns (``timing``), and PyTorch's layers beside normgrad's (``layers``)."""
