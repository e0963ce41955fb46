"""The dialects as C libraries, which run and check C and C++ host programs.

``normgrad capi build`` compiles the libraries (:mod:`.build`) from one list of functions
(:mod:`.declarations`). Each function is a generated C trampoline, which jumps to a Python function
of the same name in :mod:`.acl`, :mod:`.aclnn` or :mod:`.infini`. That function looks up handles and
pointers, and calls the dialect. docs/capi.md shows how to use the libraries.
"""
