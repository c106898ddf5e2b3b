"""See ``inert``. No torch operator is registered, so SGLang takes its plain torch code everywhere."""

from inert import install

__version__ = "0.0.0"

install(__name__)
