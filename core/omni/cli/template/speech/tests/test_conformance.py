"""omni's conformance kit on this plugin's recipe: streaming is exact, a cancel frees everything, limits hold."""

from omni.testing import conformance

TestMyPlugin = conformance("my-plugin")
