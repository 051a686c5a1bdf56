"""Network, parameter groups, schedule and the LightningModule."""
