// Lets ranks sleep where MPI has nothing to do. Its own calls wait by asking again and again, and
// where there are more ranks than cores that takes the cores from those that are waited for.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

unsigned ucp_worker_progress(void* worker) {
    static unsigned (*theirs)(void*);
    static __thread unsigned n_idle;
    if (theirs == NULL) {
        void* library = dlopen("libucp.so.0", RTLD_NOLOAD | RTLD_LAZY);
        theirs = (unsigned (*)(void*))dlsym(library ? library : RTLD_NEXT, "ucp_worker_progress");
    }
    if (theirs == NULL) {
        fputs("patient.c: the library of ucp_worker_progress is not found\n", stderr);
        abort();
    }
    const unsigned n_done = theirs(worker);
    n_idle = n_done == 0 ? n_idle + 1 : 0;
    if (n_idle > 200) {
        const struct timespec shortly = {0, 50 * 1000};
        nanosleep(&shortly, NULL);
    }
    return n_done;
}
