"""How a problem's work is cut into steps and tasks, before any data is seen."""
