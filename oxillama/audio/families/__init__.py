"""One file per family of audio encoders, or several that are alike: the tokens around a clip, and
what makes its processor. Importing this package registers every one of them.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
