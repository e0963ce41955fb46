// The interface between the generated libraries and the library that starts Python for them.
#ifndef NORMGRAD_BOOT_H
#define NORMGRAD_BOOT_H

#define EXPORTED __attribute__((visibility("default")))

struct normgrad_library {
    const char *name;
    const char *digest; // the digest of the list that the library was generated from
    void **table;       // a pointer for each function; Python fills the table
    int state; // 0 until the table is filled
};

// Prepare a call of a function, which the program called from the address ``from``: fill the
// library's table if it is the first, and take the GIL. Returns 0 if the call cannot be made.
EXPORTED int normgrad_capi_enter(struct normgrad_library *library, const char *function,
                                 void *from);

// End a call: release the GIL. If an interrupt came during the call, the Python that runs gets it.
EXPORTED void normgrad_capi_leave(void);

// Store the message on a call of a function that is absent as the thread's last error, and print it
// if ``reported``, which the function keeps, is 0.
EXPORTED void normgrad_capi_absent(const char *function, const char *there, int *reported);

// The text of this thread's last error; if it has none, the reason why Python cannot be called.
EXPORTED const char *normgrad_capi_message(void);

#endif
