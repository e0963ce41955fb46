// What the generated libraries and the one that starts Python for them agree on.
#ifndef NORMGRAD_BOOT_H
#define NORMGRAD_BOOT_H

#define EXPORTED __attribute__((visibility("default")))

struct normgrad_library {
    const char *name;
    const char *digest; // of the list of signatures that it was made from
    void **table;       // a pointer for each function, filled by Python
    int state; // 0: not filled yet
};

// Whether the library's table can be called through, for a function that the program called from
// some address; fills it the first time.
EXPORTED int normgrad_capi_enter(struct normgrad_library *library, const char *function,
                                 void *from);

// After a call: an interrupt that came during it is the running Python's to handle.
EXPORTED void normgrad_capi_leave(void);

// The text of this thread's last error; if it has none, why a library cannot be entered.
EXPORTED const char *normgrad_capi_message(void);

#endif
