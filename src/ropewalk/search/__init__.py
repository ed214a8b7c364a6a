"""Search: many trials of one training function, over pools and clusters; schedulers that stop bad ones early.

Importing loads nothing else. It needs `pip install 'ropewalk[search]'`.
"""
