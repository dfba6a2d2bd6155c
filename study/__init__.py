"""The registered study of this repository: its files, and the pages made from its records.

Not part of the package that is installed: it uses pidformer as any user would. `python -m study`
writes docs/results.md, docs/results/*.md, their pictures, the table in README.md and the costs in
docs/reproduce.md from the records in results/.
"""
