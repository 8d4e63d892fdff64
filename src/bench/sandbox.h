/* What a contestant's process may not do, by filters of the kernel (seccomp). System calls of another
   architecture, which the filters do not know, end the process. Where the kernel has no filters, this has no
   effect. */
#ifndef TESSERA_BENCH_SANDBOX_H
#define TESSERA_BENCH_SANDBOX_H

/* From now on the process ends if it signals another one; it and all that it starts stay in its process group
   (setsid and setpgid fail with EPERM); and if memory runs out, the kernel chooses it rather than the program
   that started it. */
void sandbox_begin(void);

/* From now on no thread can leave the cores that the process was started on: setting the affinity of the
   calling thread ends the process; that of another thread cannot be set (EPERM). */
void sandbox_forbid_affinity(void);

#endif
