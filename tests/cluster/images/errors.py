"""What ends the making of images, in one sentence for a person."""


class ImageError(Exception):
    """No image can be made: what is wrong, and what helps."""


class NoEngineError(ImageError):
    """This machine has no program that builds images."""
