"""An accelerator that is not there."""
