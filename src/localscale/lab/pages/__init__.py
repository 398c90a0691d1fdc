"""Pages made from runs: the report of one run, the tables of results, and the app in the browser."""
