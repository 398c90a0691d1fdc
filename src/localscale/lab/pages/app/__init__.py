"""A page in the browser, for one person on one machine (extra: app).

>>> from localscale.lab.pages.app import open_page
>>> with open_page("small") as address:  # doctest: +SKIP
...     print(address)
http://127.0.0.1:7860/
"""

from localscale.lab.pages.app.limits import Limits
from localscale.lab.pages.app.serve import open_page

__all__ = ["Limits", "open_page"]
