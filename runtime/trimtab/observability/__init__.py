"""Seeing a job: metric names, files, health rules, the live view, Prometheus and the report.

Imports neither torch nor matplotlib; the modules beside this one are imported where they are used.
"""
