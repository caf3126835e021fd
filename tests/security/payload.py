"""A pickle that leaves a trace when it is loaded."""

import pickle


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return open, (str(self.witness), "w")

    def pickled(self):
        return pickle.dumps(self)
