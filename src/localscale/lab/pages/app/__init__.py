"""A local web page that scales a part of an image and shows what a model sees and answers (extra: app).

>>> from localscale.lab.pages.app import open_page
>>> with open_page("small") as address:  # doctest: +SKIP
...     print(address)
http://127.0.0.1:7860/
"""

from localscale.lab.pages.app.server import open_page
from localscale.lab.pages.app.uploads import Limits

__all__ = ["Limits", "open_page"]
