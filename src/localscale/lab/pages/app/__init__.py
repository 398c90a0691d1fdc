"""A local web page that scales parts of an image and shows a model's answers (extra: app).

>>> from localscale.lab.pages.app import open_page
>>> with open_page("small") as address:  # doctest: +SKIP
...     print(address)
http://127.0.0.1:7860/
"""

from localscale.lab.pages.app.server import open_page
from localscale.lab.pages.app.uploads import Limits

__all__ = ["Limits", "open_page"]
