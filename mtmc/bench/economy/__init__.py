"""Measurement economy: what judged programs cost and tell, on the first two decisions of a few examples.

``rows`` is the file, ``plan`` the order of the work, ``run`` hands it to ``crew``, whose processes do it as ``lane``
says; ``figures`` are numbers from the rows and ``page`` is their text.
"""
