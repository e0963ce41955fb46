"""What everything else uses: the cache, compilers, the machine, threads and errors."""
