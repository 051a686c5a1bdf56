"""What a fault's case raises where it cannot be made."""


class NotTried(Exception):
    """This machine does not allow the fault."""
