"""A page in the browser, for one person on one machine (extra: app).

>>> from localscale.app import open_page
>>> with open_page("small") as address:  # doctest: +SKIP
...     print(address)
http://127.0.0.1:7860/
"""

from localscale.app.limits import Limits
from localscale.app.serve import open_page

__all__ = ["Limits", "open_page"]
