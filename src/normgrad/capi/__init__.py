"""The dialects as C libraries: any C or C++ host program of theirs runs, and is checked.

``normgrad capi build`` compiles them (:mod:`.build`) from one list (:mod:`.declarations`). What a
program calls is a trampoline, generated in C; it jumps to a Python function of the same name, in
:mod:`.acl`, :mod:`.aclnn` or :mod:`.infini`, which looks handles and pointers up and calls the
dialect. docs/capi.md shows how to use them.
"""
