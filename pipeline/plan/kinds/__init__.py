"""The kinds of actions, one module each.

A module holds the kind's inputs as one record, its key, the words for a difference of each field of
the key, its blobs, and the form in which its inputs go to a worker. The key is made of nothing but
the inputs and of what its maker is: this package's code, libraries and machine.
"""
