"""The vendors' interfaces: aclnn and infiniop, in Python and as C libraries."""
