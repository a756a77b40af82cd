"""The kinds of actions, one module each.

A module holds the record of the kind's inputs, its key, the words for a difference in each field of
the key, its blobs, and the form in which its inputs go to a worker. The key is made only from the
inputs and from the identity of their maker: this package's code, libraries and machine.
"""
