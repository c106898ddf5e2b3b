"""See ``inert``. There is no distribution of this name, so transformers knows that it is not there."""

from inert import install

__version__ = "0.0.0"

install(__name__)
