"""The dialects as C libraries, which run and check C and C++ host programs.

The libraries are C (the files here, and their headers in ``include``). ``normgrad capi build``
compiles them (:mod:`.build`). They ask Python (:mod:`.bridge`) to check a new kind of call and to
make its plan. docs/capi.md shows how to use them.
"""
