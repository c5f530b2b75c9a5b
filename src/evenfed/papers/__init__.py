"""The papers' tables: what each needs, the published figures, and ours beside them.

A paper is one module `NAME.py` with `PAPER`, and one file `published/NAME.json` with the printed
figures. Nothing here trains by itself: `running` carries out the jobs that a recipe lists.
"""
