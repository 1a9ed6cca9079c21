"""An S3 service on this machine, and what it was asked for."""

import logging
import re
import threading
import urllib.request
from collections import Counter

import obstore
from moto.server import ThreadedMotoServer

KEY_ID = "AKIAEXAMPLE0KEY0ID00"
SECRET_KEY = "wJalrXUtnFEMI0K7MDENG0bPxRfiCYEXAMPLEKEY"
REGION = "us-east-1"
_REQUEST = re.compile(r'"(?:\x1b\[[\d;]*m)*GET /([^ ?]+)')


class S3Server(logging.Handler):
    """A bucket service. It lets everybody read what is public, and checks no signature."""

    def __init__(self):
        super().__init__()
        self.gets = Counter()
        self._counting = threading.Lock()
        self._logger = logging.getLogger("werkzeug")
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self):
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        self._logger.propagate = False
        self._server.start()
        self.url = "http://{}:{}".format(*self._server.get_host_and_port())
        return self

    def __exit__(self, *_):
        self._server.stop()
        self._logger.removeHandler(self)

    def emit(self, record):
        """Count objects that were read, as the server logs them."""
        found = _REQUEST.search(record.getMessage())
        if found:
            with self._counting:
                self.gets[found[1]] += 1

    @property
    def place(self):
        """Options that find the service, without credentials."""
        return {"endpoint": self.url, "region": REGION}

    @property
    def options(self):
        """Options to read and write with."""
        return {**self.place, "access_key_id": KEY_ID, "secret_access_key": SECRET_KEY}

    def upload(self, bucket, files, *, is_public=False):
        """Make a bucket with these objects."""
        request = urllib.request.Request(f"{self.url}/{bucket}", method="PUT")
        urllib.request.urlopen(request).close()
        acl = {"x-amz-acl": "public-read" if is_public else "private"}
        client = {"allow_http": True, "default_headers": acl}
        store = obstore.store.S3Store(bucket, client_options=client, **self.options)
        for key, content in files.items():
            obstore.put(store, key, content)
