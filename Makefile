# Tessera.  make            build ./train                 make check   all tests (SAN=address,undefined: sanitized)
#           make fuzz SECONDS=60   hostile input for each parser, with clang's libFuzzer and sanitizers; JOBS=2: two at once
#           make soak KILLS=1000 INTERRUPTS=100   kills, interrupts, full disks, two writers, every signal
#           make run        set up, build, train          make probe   what was found on this machine
#           make check-threads  the tests with threads under ThreadSanitizer (clang, libomp's archer)
#           make check-emulated  the program for any x86-64 on a Nehalem, and for aarch64, under qemu
#           make check-matrix  the tests that compute, kernels/host compiled for several processors
#           make format     lay the source out            make lint    clang-tidy
#           make figures    measures this machine: the logs in FIGURES=docs/figures/cpu, README.md and docs/
#           make install PREFIX=/usr/local   the program tessera, configs, gemm.h, manual, completions    make uninstall
#           make clean
#
#           make compile_commands.json    for clangd and other tools
#
# Variables: CC=clang  MARCH=haswell (default: native)  PORTABLE=1 (no -march: runs on any x86-64)
#            CUDA=1 (GPU backends although no GPU is here)  SM=90 (for this compute capability)  CUDA=0  OPENBLAS=0  MPI=0
#            SAN=address,undefined  WERROR=1  V=1 (show the commands)  PREFIX DESTDIR

CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
NVCC ?= nvcc
PREFIX ?= /usr/local
PORTABLE ?= 0
MARCH ?= native
OPENBLAS ?= 1
CUDA ?= auto
SAN ?=
WERROR ?= 0
Q := $(if $(filter 1,$(V)),,@)

# one job a core, unless the caller said how many; what takes minutes and says how far it is shows its output at once
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1) $(if $(filter run figures soak,$(MAKECMDGOALS)),,--output-sync)
endif

# --- what is there: compile and link a line against each library; what was found is remembered under build/ ---

PROBES := build/probe/$(subst /,_,$(CC))
# $(call probe,NAME,COMPILER AND FLAGS,C SOURCE,LIBRARIES) is 1 or empty
probe = $(shell test -e $(PROBES)/$1 || { mkdir -p $(PROBES); printf '%b\n' '$3' > $(PROBES)/$1.$(or $5,c); \
	$2 $(PROBES)/$1.$(or $5,c) -o $(PROBES)/$1.out $4 > $(PROBES)/$1.log 2>&1 && touch $(PROBES)/$1; }; \
	test -e $(PROBES)/$1 && echo 1)
hash := \#
, := ,

HAVE_CC := $(call probe,cc,$(CC),int main(void) { return 0; })
HAVE_OPENMP := $(call probe,openmp,$(CC) -fopenmp,$(hash)include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; })
HAVE_ZLIB := $(call probe,zlib,$(CC),$(hash)include <zlib.h>\nint main(void) { return zlibVersion() == 0; },-lz)
HAVE_CJSON := $(call probe,cjson,$(CC),$(hash)include <cjson/cJSON.h>\nint main(void) { return cJSON_Version() == 0; },-lcjson)
HAVE_PNG := $(call probe,png,$(CC),$(hash)include <png.h>\nint main(void) { png_image image = {.version = PNG_IMAGE_VERSION}; png_image_free(&image); return 0; },-lpng)
HAVE_JPEG := $(call probe,jpeg,$(CC),$(hash)include <stdio.h>\n$(hash)include <jpeglib.h>\nint main(void) { struct jpeg_error_mgr errors; return !jpeg_std_error(&errors); },-ljpeg)
HAVE_CMOCKA := $(call probe,cmocka,$(CC),$(hash)include <stdarg.h>\n$(hash)include <stddef.h>\n$(hash)include <stdint.h>\n$(hash)include <setjmp.h>\n$(hash)include <cmocka.h>\nint main(void) { return cmocka_set_message_output == 0; },-lcmocka)
# Debian's OpenMP build of OpenBLAS first: one thread pool with ours, where the pthreads build keeps its own
OPENBLAS_DIR := $(firstword $(wildcard /usr/lib/*-linux-gnu/openblas-openmp))
OPENBLAS_LIBS ?= $(if $(OPENBLAS_DIR),-L$(OPENBLAS_DIR) -Wl$(,)-rpath$(,)$(OPENBLAS_DIR)) -lopenblas
HAVE_OPENBLAS := $(if $(filter 1,$(OPENBLAS)),$(call probe,openblas,$(CC),$(hash)include <cblas.h>\nint main(void) { return openblas_get_num_threads() < 1; },$(OPENBLAS_LIBS)))
# loaded when it is used, not linked: the name that the dynamic linker knows it by
OPENBLAS_SONAME := $(if $(HAVE_OPENBLAS),$(shell readelf -d $(PROBES)/openblas.out | sed -n 's/.*(NEEDED).*\[\(.*blas.*\)\]/\1/p'))
HAVE_OPENBLAS := $(if $(OPENBLAS_SONAME),1)
# what mpicc of Open MPI or MPICH adds to the compiler; MPI=0 leaves it out
MPI ?= 1
MPICC ?= mpicc
MPI_FLAGS := $(if $(filter 1,$(MPI)),$(filter -I% -L% -l% -Wl%,$(shell $(MPICC) -show 2>/dev/null)))
HAVE_MPI := $(if $(MPI_FLAGS),$(call probe,mpi,$(CC),$(hash)include <mpi.h>\nint main(void) { return MPI_Init(0$(,) 0); },$(MPI_FLAGS)))
# The CUDA part takes minutes to compile: only where a GPU is, or where CUDA=1 or SM asks for it
GPU := $(wildcard /dev/nvidia0 /dev/dxg)
WANT_CUDA := $(if $(filter auto,$(CUDA)),$(GPU)$(SM),$(filter 1,$(CUDA)))
HAVE_CUDA := $(if $(WANT_CUDA),$(call probe,cuda,$(NVCC),$(hash)include <cublas_v2.h>\nint main(void) { cublasHandle_t handle; return cublasCreate(&handle) != 0; },-lcublas,cu))

REQUIRED := $(if $(HAVE_CC),,gcc) $(if $(HAVE_OPENMP),,$(if $(findstring clang,$(CC)),libomp-dev)) \
	$(if $(HAVE_ZLIB),,zlib1g-dev) $(if $(HAVE_CJSON),,libcjson-dev)
# what `make run` and `make check` install, when they may
FETCHER := $(if $(filter run,$(MAKECMDGOALS)),$(if $(wildcard data/mnist/train-images*)$(shell command -v curl || command -v wget),,curl ca-certificates))
PACKAGES := $(strip $(REQUIRED) $(if $(HAVE_CMOCKA),,libcmocka-dev) $(if $(HAVE_PNG),,libpng-dev) $(if $(HAVE_JPEG),,libjpeg-dev) \
	$(if $(HAVE_OPENBLAS)$(filter 0,$(OPENBLAS)),,libopenblas-openmp-dev) $(FETCHER))

# --- flags ---

VARIANT := $(subst /,_,$(CC))$(if $(filter 1,$(PORTABLE)),-portable,$(if $(filter-out native,$(MARCH)),-$(MARCH)))$(if $(SAN),-san)$(if $(HAVE_OPENBLAS),,-noblas)$(if $(HAVE_CUDA),-cuda)
B := build/$(VARIANT)

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(findstring clang,$(CC)),-Wno-pass-failed)
# gnu11: POSIX beside C11, and a * b + c may become one fused multiply-add; without errno of sqrt, loops over it vectorise
OPTIMIZE := $(if $(SAN),-O1 -g1 -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all,-O3) \
	$(if $(filter 1,$(PORTABLE)),,-march=$(MARCH)) -ffp-contract=fast -fno-math-errno
CFLAGS ?=
ALL_CFLAGS := -std=gnu11 $(OPTIMIZE) $(if $(HAVE_OPENMP),-fopenmp) $(CFLAGS)
# NORMAL_EXIT: what these compile in reports in an exit handler
CPPFLAGS := -I. -I$(B) $(if $(SAN),-DSANITIZED) $(if $(SAN)$(filter --coverage -pg -fprofile%,$(CFLAGS)),-DNORMAL_EXIT) $(if $(HAVE_OPENMP),-DHAVE_OPENMP) $(if $(HAVE_PNG),-DHAVE_PNG) $(if $(HAVE_JPEG),-DHAVE_JPEG) $(if $(HAVE_OPENBLAS),-DHAVE_OPENBLAS -DOPENBLAS_SONAME=$(OPENBLAS_SONAME)) $(if $(HAVE_MPI),-DHAVE_MPI)
# CUDA: for the GPU that is here, else for all that CUDA 13 knows and, as PTX, those to come; SM=90 says which
CUDA_HOME := $(if $(HAVE_CUDA),$(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC))))))
DETECTED_SM := $(if $(HAVE_CUDA),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u))
SM ?= $(DETECTED_SM)
GENCODE := $(foreach sm,$(or $(strip $(SM)),75 80 86 89 90),-gencode arch=compute_$(sm)$(,)code=sm_$(sm)) \
	$(if $(strip $(SM)),,-gencode arch=compute_90$(,)code=compute_90)
NVCCFLAGS ?=
ALL_NVCCFLAGS := -std=c++20 -O3 $(GENCODE) -Xcompiler -Wall$(,)-Wextra$(,)-Wno-missing-field-initializers$(if $(filter 1,$(WERROR)),$(,)-Werror) $(NVCCFLAGS)
CPPFLAGS += $(if $(HAVE_CUDA),-DHAVE_CUDA,$(if $(filter 0,$(CUDA)),-DCUDA_LEFT_OUT,$(if $(WANT_CUDA),,-DCUDA_NOT_WANTED))) $(if $(filter 0,$(OPENBLAS)),-DOPENBLAS_LEFT_OUT)
CUDA_LIBS := $(if $(HAVE_CUDA),-L$(CUDA_HOME)/lib64 -Wl$(,)-rpath$(,)$(CUDA_HOME)/lib64 -lcudart_static -lrt -lpthread -lstdc++)

LDLIBS := $(CUDA_LIBS) $(if $(HAVE_OPENBLAS),$(filter-out -l%,$(OPENBLAS_LIBS))) -lcjson $(if $(HAVE_PNG),-lpng) $(if $(HAVE_JPEG),-ljpeg) $(if $(HAVE_MPI),$(filter -L% -l% -Wl%,$(MPI_FLAGS))) -lz -lm -ldl

# --- sources: every file of a folder belongs to the program, but for backends whose library is missing ---

# (what takes longest to compile first)
SOURCES := $(wildcard kernels/host/tuned/*.c kernels/host/*.c kernels/host/gemm/*.c kernels/host/ops/*.c src/*/*.c)
SOURCES := $(if $(HAVE_OPENBLAS),$(SOURCES),$(filter-out kernels/host/gemm/openblas.c,$(SOURCES)))
SOURCES := $(if $(HAVE_OPENMP),$(SOURCES),$(filter-out kernels/host/gemm/openmp.c,$(SOURCES)))
SOURCES := $(if $(HAVE_PNG),$(SOURCES),$(filter-out src/data/picture_png.c,$(SOURCES)))
SOURCES := $(if $(HAVE_JPEG),$(SOURCES),$(filter-out src/data/picture_jpeg.c,$(SOURCES)))
SOURCES := $(if $(HAVE_MPI),$(SOURCES),$(filter-out src/comm/mpi.c,$(SOURCES)))
LONGEST_CUDA := $(wildcard kernels/cuda/*/*_wgmma.cu $(patsubst %,kernels/cuda/%.cu,persistent/look_ahead persistent/tiled \
	gemm/6_tuned_small ops/bias cluster/sum_reals tensor/bf16_output_large))
CUDA_SOURCES := $(if $(HAVE_CUDA),$(LONGEST_CUDA) $(filter-out $(LONGEST_CUDA),$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu src/device/*.cu)))
OBJECTS := $(CUDA_SOURCES:%.cu=$(B)/%.cu.o) $(SOURCES:%.c=$(B)/%.o)
# WITHOUT=measure leaves tests/test_measure.c out
# the longest first, so that no core waits for one of them at the end
LONGEST := hostile measure plugin gemm processes_faults allocation fused bounds audit process bits grade tuned streamed readout_command
TESTS := $(LONGEST:%=tests/test_%.c) $(filter-out $(LONGEST:%=tests/test_%.c),$(wildcard tests/test_*.c))
TESTS := $(filter-out $(WITHOUT:%=$(B)/tests/test_%),$(TESTS:%.c=$(B)/%))
GPU_TESTS := $(filter $(B)/tests/test_gpu_%,$(TESTS))
TEST_SUPPORT := $(patsubst %.c,$(B)/%.o,$(filter-out tests/test_%.c,$(wildcard tests/*.c)))

.PHONY: all run check probe deps required format check-format lint install uninstall clean FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: probe required $(B)/train
	@cmp -s $(B)/train train || cp $(B)/train train

mark = $(if $1,  [x] ,  [ ] )$2
probe:
	@echo 'found on this machine:'
	@echo '$(call mark,$(HAVE_CC),$(CC))$(if $(HAVE_CC),,: needed; apt-get install gcc)'
	@echo '$(call mark,$(HAVE_OPENMP),OpenMP)$(if $(HAVE_OPENMP),,: for threads and the backend openmp; clang needs apt-get install libomp-dev)'
	@echo '$(call mark,$(HAVE_ZLIB),zlib)$(if $(HAVE_ZLIB),,: needed to read data sets; apt-get install zlib1g-dev)'
	@echo '$(call mark,$(HAVE_CJSON),cJSON)$(if $(HAVE_CJSON),,: needed for logs and checkpoints; apt-get install libcjson-dev)'
	@echo '$(call mark,$(HAVE_CMOCKA),cmocka)$(if $(HAVE_CMOCKA),,: for make check; apt-get install libcmocka-dev)'
	@echo '$(call mark,$(HAVE_PNG),libpng)$(if $(HAVE_PNG),,: to read PNG pictures; apt-get install libpng-dev)'
	@echo '$(call mark,$(HAVE_JPEG),libjpeg)$(if $(HAVE_JPEG),,: to read JPEG pictures; apt-get install libjpeg-dev)'
	@echo '$(call mark,$(HAVE_OPENBLAS),OpenBLAS)$(if $(HAVE_OPENBLAS),,: for the backend openblas; $(if $(filter 0,$(OPENBLAS)),left out by OPENBLAS=0,apt-get install libopenblas-openmp-dev))'
	@echo '$(call mark,$(HAVE_MPI),MPI)$(if $(HAVE_MPI),,: for training on several hosts; $(if $(filter 0,$(MPI)),left out by MPI=0,apt-get install libopenmpi-dev openmpi-bin))'
	@echo '$(call mark,$(HAVE_CUDA),CUDA with cuBLAS)$(if $(HAVE_CUDA), for $(if $(strip $(SM)),sm_$(strip $(SM)),sm_75 to sm_90 and PTX),: for GPU backends; $(if $(WANT_CUDA),install the CUDA toolkit,$(if $(filter 0,$(CUDA)),left out by CUDA=0,no GPU is here$(,) CUDA=1 builds them nevertheless)))'

required:
ifneq ($(strip $(REQUIRED)),)
	@echo 'cannot build without: $(strip $(REQUIRED))'
	@echo 'install with:  $(SUDO)apt-get install $(strip $(REQUIRED))      (or: make run, which asks apt itself)'
	@exit 1
endif

# --- set-up and the main job ---

SUDO := $(if $(filter 0,$(shell id -u)),,sudo )
deps:
ifneq ($(PACKAGES),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then run=; \
	elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then run='sudo -n'; else run=no; fi; \
	if [ "$$run" = no ]; then \
		echo 'not installed, and not allowed to install:  $(PACKAGES)'; \
		echo 'run this, then make again:  $(SUDO)apt-get install $(PACKAGES)'; \
	else echo 'installing: $(PACKAGES)'; \
		{ $$run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq $(PACKAGES); } \
		> build/apt.log 2>&1 || { tail -n 5 build/apt.log; echo 'apt-get failed (build/apt.log); run:  $(SUDO)apt-get install $(PACKAGES)'; }; \
	fi
endif

CONFIG ?= configs/validation.cfg
run: deps
	@$(MAKE) --no-print-directory all
	@data/fetch.sh || echo 'MNIST is not there: training on the embedded synthetic digits instead'
	./train --config $(CONFIG)

check: deps
	@$(MAKE) --no-print-directory run-tests

# --- build ---

$(B)/train: $(OBJECTS) $(B)/train.o
	@echo '  link  $@'
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -o $@

# compiled anew when the flags change; the second line replaces -O3 in some files
FLAGS := $(CC) $(ALL_CFLAGS) $(CPPFLAGS) $(OPENBLAS_LIBS)
$(B)/flags: FORCE
	@mkdir -p $(B)
	@printf '%s\n' '$(FLAGS)' '$(LEVEL)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

COMMIT := $(shell git describe --always --dirty --abbrev=10 2>/dev/null || echo unknown)
$(B)/buildinfo.h: FORCE
	@mkdir -p $(B)
	@printf '#define BUILD_COMMIT "%s"\n#define BUILD_FLAGS "%s"\n' '$(COMMIT)' '$(strip $(ALL_CFLAGS))' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(B)/%.o: %.c $(B)/flags | $(B)/buildinfo.h
	@mkdir -p $(@D)
	@echo '  cc    $<'
	$(Q)$(CC) $(ALL_CFLAGS) $(WARNINGS) $(if $(filter 1,$(WERROR)),-Werror) $(CPPFLAGS) -MMD -MP -c $< -o $@

# The examples of the tutorial, each a fenced block whose first line names the file, also as strings for `new-backend`
TUTORIAL := docs/your-own-gemm.md
SKELETONS := my_gemm.c my_gemm.cu my_blas.c
$(SKELETONS:%=$(B)/tutorial/%): $(TUTORIAL)
	@mkdir -p $(@D)
	@awk '/^```/ { inside = !inside; next } inside && / $(@F)( |$$)/ && /^\/[*\/]/ { found = 1 } !inside { found = 0 } found' $< > $@
	@test -s $@ || { echo '$(TUTORIAL) has no $(@F)'; exit 1; }

$(B)/skeletons.h: $(SKELETONS:%=$(B)/tutorial/%)
	@for file in $(SKELETONS); do echo "static const char $$(echo $$file | tr . _)[] ="; \
		sed -e 's/[\\"]/\\&/g' -e 's/.*/    "&\\n"/' $(B)/tutorial/$$file; echo '    "";'; done > $@
$(patsubst %.c,$(B)/%.o,src/cmd/new_backend.c): $(B)/skeletons.h

$(patsubst %.c,$(B)/%.o,src/comm/mpi.c): private CPPFLAGS += $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_FLAGS)))

# the check that the CPU has the instructions of -march must not use them itself
$(patsubst %.c,$(B)/%.o,src/base/cpu.c): private ALL_CFLAGS := $(filter-out -m%,$(ALL_CFLAGS))

# the kernels of `tuned` say themselves what is contracted (kernels/host/tuned/vector.h), and the exact sums of k-means need each
# product and sum as written (kernels/exact.h); the kernels of isa=portable are compiled for the
# baseline of the architecture, so that their products have the same bits on every x86-64; they are not what is fuzzed
ISA := $(wildcard kernels/host/tuned/isa_*.c)
EXPLICIT := $(ISA) kernels/host/ops/cluster.c tests/tuned_emulated.c tests/test_nearest.c
# of gcc's -O3 what changes the inner loops of these and of the tests: the rest doubles the time to compile
LEVEL := $(if $(findstring clang,$(CC)),-O3,-O2 -ftree-vectorize -funswitch-loops -fvect-cost-model=dynamic)
$(B)/tests/%.o $(ISA:%.c=$(B)/%.o): private ALL_CFLAGS := $(subst -O3,$(LEVEL),$(ALL_CFLAGS))
$(EXPLICIT:%.c=$(B)/%.o): private ALL_CFLAGS += -ffp-contract=off $(if $(findstring fuzzer,$(SAN)),-fno-sanitize=all)
BASELINE := $(if $(findstring x86_64,$(shell $(CC) -dumpmachine)),-march=x86-64)
$(patsubst %.c,$(B)/%.o,kernels/host/tuned/isa_portable.c): private ALL_CFLAGS += $(BASELINE)
# Sanitizers multiply the time to compile these: not where the processor cannot run them; QR is not fuzzed
AVX512 := $(if $(SAN),$(shell grep -m1 -o avx512f /proc/cpuinfo))
$(patsubst %.c,$(B)/%.o,$(wildcard kernels/host/tuned/isa_avx512*.c)): private ALL_CFLAGS += $(if $(SAN),$(if $(AVX512),,-fno-sanitize=all))
$(patsubst %.c,$(B)/%.o,kernels/host/ops/qr.c): private ALL_CFLAGS += $(if $(findstring fuzzer,$(SAN)),-fno-sanitize=all)

$(patsubst %.cu,$(B)/%.cu.o,$(wildcard kernels/cuda/cluster/*.cu)): private ALL_NVCCFLAGS += -fmad=false
# wgmma is in the target 90a alone; always optimised: ptxas 13.0 crashes on it with -O0, and what it notes is of the program
$(patsubst %.cu,$(B)/%.cu.o,$(wildcard kernels/cuda/*/*_wgmma.cu)): private ALL_NVCCFLAGS := \
	$(subst -O0,-O3,$(subst -O1,-O3,$(subst _90,_90a,$(ALL_NVCCFLAGS))))

# C7508 to C7518 and C7520 say that ptxas runs wgmma one after the other; the arrive that C7519 adds costs nothing,
# and printf of stage_profile (with -DFUSED_STAGES) is called when all of them are done
$(B)/%.cu.o: %.cu $(B)/cudaflags
	@mkdir -p $(@D)
	@echo '  nvcc  $<'
	$(Q)$(NVCC) $(ALL_NVCCFLAGS) -I. -I$(B) -MMD -MP -c $< -o $@ 2>$@.notes; status=$$?; cat $@.notes >&2; \
		if grep -E '\(C75(0[89]|1[0-8]|20)\)' $@.notes | grep -qv '$(if $(findstring -DFUSED_STAGES,$(ALL_NVCCFLAGS)),stage_profile5print,^$$)'; then echo '$<: ptxas waits between the wgmma of a group' >&2; status=1; fi; \
		[ $$status -eq 0 ] || { rm -f $@; exit 1; }

$(B)/cudaflags: FORCE
	@mkdir -p $(B)
	@echo '$(NVCC) $(ALL_NVCCFLAGS)' | cmp -s - $@ || echo '$(NVCC) $(ALL_NVCCFLAGS)' > $@

-include $(OBJECTS:.o=.d) $(B)/train.d $(TESTS:=.d) $(TEST_SUPPORT:.o=.d)

# --- tests ---

# gold and lld link the hundred programs in half the time and less; gold warns of the sanitizers of clang
main := int main(void) { return 0; }
LLD := $(if $(findstring clang,$(CC)),$(if $(call probe,lld,$(CC) -fuse-ld=lld,$(main)),lld))
GOLD := $(if $(and $(SAN),$(findstring clang,$(CC))),,$(if $(BASELINE),$(if $(call probe,gold,$(CC) -fuse-ld=gold,$(main)),gold)))
LINKER := $(if $(HAVE_CUDA),,$(firstword $(LLD) $(GOLD)))
# what they share is linked first into one file, which takes half the time of the hundred links
SHARED := $(if $(HAVE_CUDA),$(TEST_SUPPORT) $(OBJECTS),$(B)/shared.o)
$(B)/shared.o: $(TEST_SUPPORT) $(OBJECTS)
	@echo '  link  $@'
	$(Q)$(CC) -r -nostdlib $^ -o $@
$(B)/tests/test_%: $(B)/tests/test_%.o $(SHARED)
	@echo '  link  $@'
	$(Q)$(CC) $(ALL_CFLAGS) $(LINKER:%=-fuse-ld=%) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

# calls of these go through tests/test_allocation.c
ALLOCATING := malloc calloc realloc aligned_alloc strdup realpath fopen fdopen fopencookie opendir getline getdelim \
	newlocale pthread_create gzdopen gzread gzerror fsync
$(B)/tests/test_allocation: private LDFLAGS += $(ALLOCATING:%=-Wl$(,)--wrap=%)

# Plug-ins: deliberately wrong ones, those that must be refused, and right ones that use kernels/gemm.h alone: as C11, as C++17,
# and the examples of the tutorial, compiled with the very lines that it gives
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
HAVE_CXX := $(call probe,cxx,$(CXX) -std=c++17,int main() { return 0; },,cc)
EXAMPLES := $(B)/tutorial/my.so $(B)/tutorial/wrong.so $(if $(HAVE_CUDA),$(B)/tutorial/my_cuda.so) \
	$(if $(HAVE_OPENBLAS),$(B)/tutorial/my_blas.so) $(if $(HAVE_CXX),$(B)/tutorial/my_cpp.so)
PLUGINS := $(patsubst tests/plugins/%.c,$(B)/plugins/%.so,$(wildcard tests/plugins/*.c tests/plugins/*/*.c)) $(EXAMPLES) \
	$(if $(HAVE_CXX),$(B)/plugins/good/cplusplus.so)
STRICT := -Wall -Wextra -pedantic $(if $(filter 1,$(WERROR)),-Werror)

# without sanitizers, as the plug-ins of users are
PLUGIN_CFLAGS := $(filter-out -fsanitize=% -fno-sanitize-recover=%,$(ALL_CFLAGS)) -O3
$(B)/plugins/%.so: tests/plugins/%.c $(B)/flags
	@mkdir -p $(@D)
	@echo '  so    $@'
	$(Q)$(CC) $(PLUGIN_CFLAGS) $(WARNINGS) $(if $(filter 1,$(WERROR)),-Werror) -I. -MMD -MP -shared -fPIC -pthread $< -o $@

-include $(PLUGINS:.so=.d)

$(B)/plugins/good/c11.so: tests/plugins/good/c11.c $(B)/tutorial/kernels/gemm.h
	@mkdir -p $(@D)
	@echo '  so    $@'
	$(Q)$(CC) -std=c11 -O3 $(filter -march=%,$(ALL_CFLAGS)) $(STRICT) -I$(B)/tutorial -shared -fPIC $< -o $@

$(B)/plugins/good/cplusplus.so: tests/plugins/good/cplusplus.cc $(B)/tutorial/kernels/gemm.h
	@mkdir -p $(@D)
	@echo '  so    $@'
	$(Q)$(CXX) -std=c++17 -O3 $(filter -march=%,$(ALL_CFLAGS)) $(STRICT) -I$(B)/tutorial -shared -fPIC $< -o $@

# the header all by itself
$(B)/tutorial/kernels/gemm.h: kernels/gemm.h
	@mkdir -p $(@D)
	@cp $< $@

# $(call tutorial_line,START): its compile line that starts so, with our compiler
tutorial_line = $$(grep '^$1 ' $(CURDIR)/$(TUTORIAL) | sed -e 's|^gcc|$(CC)|' -e 's|^g++|$(CXX)|' -e 's|^nvcc|$(NVCC)|' \
	$(if $(HAVE_OPENMP),,-e 's/-fopenmp//') -e 's|-lopenblas|$(OPENBLAS_LIBS)|')
TUTORIAL_WARNINGS := -Wall -Wextra -Wno-unused-parameter $(if $(filter 1,$(WERROR)),-Werror)
$(B)/tutorial/my.so: $(B)/tutorial/my_gemm.c $(B)/tutorial/kernels/gemm.h
	@echo '  so    $@'
	$(Q)cd $(@D) && $(call tutorial_line,gcc.* my_gemm.c) $(TUTORIAL_WARNINGS)

$(B)/tutorial/my_blas.so: $(B)/tutorial/my_blas.c $(B)/tutorial/kernels/gemm.h $(B)/flags
	@echo '  so    $@'
	$(Q)cd $(@D) && $(call tutorial_line,gcc.* my_blas.c) $(TUTORIAL_WARNINGS)

$(B)/tutorial/my_cpp.so: $(B)/tutorial/my_gemm.c $(B)/tutorial/kernels/gemm.h
	@echo '  so    $@'
	$(Q)mkdir -p $(@D)/cpp && cp $< $(@D)/cpp/my_gemm.cpp
	$(Q)cd $(@D)/cpp && ln -sfn ../kernels kernels && $(call tutorial_line,g++) $(TUTORIAL_WARNINGS) -Wno-missing-field-initializers && mv my.so ../my_cpp.so

$(B)/tutorial/my_cuda.so: $(B)/tutorial/my_gemm.cu $(B)/tutorial/kernels/gemm.h
	@echo '  so    $@'
	$(Q)cd $(@D) && $(call tutorial_line,nvcc) -std=c++17

# the mistake that the tutorial makes
$(B)/tutorial/wrong.so: $(B)/tutorial/my.so
	@echo '  so    $@'
	$(Q)mkdir -p $(@D)/wrong && sed 's/(beta == 0 ? 0 : \(.*\));/\1;/' $(@D)/my_gemm.c > $(@D)/wrong/my_gemm.c
	$(Q)! cmp -s $(@D)/my_gemm.c $(@D)/wrong/my_gemm.c
	$(Q)$(CC) -O3 -march=native $(if $(HAVE_OPENMP),-fopenmp) -shared -fPIC -I$(@D) $(@D)/wrong/my_gemm.c -o $@

$(B)/tests/test_plugin $(B)/tests/test_kmeans_command $(B)/tests/test_kmeans_steps $(B)/tests/test_bench_qr $(B)/tests/test_counters $(B)/tests/test_hostile_files $(B)/tests/test_process $(B)/tests/test_hostile $(B)/tests/test_grade $(B)/tests/test_grade_command $(B)/tests/test_user_paths $(B)/tests/test_assignment: | $(PLUGINS)

.PHONY: plugins tests run-tests check-gpu
plugins: $(PLUGINS)

# all that make check runs, without running it
tests: probe required $(if $(HAVE_CMOCKA),$(B)/train $(TESTS) $(PLUGINS))

# the tests that compute, with kernels/host compiled for several processors
.PHONY: check-matrix
check-matrix: tests
	@tests/matrix.sh '$(CC)' $(B) '$(OBJECTS) $(TEST_SUPPORT)' '$(LDFLAGS) $(LDLIBS) -lcmocka'

# races: the tests with threads under ThreadSanitizer. Archer tells it what OpenMP's barriers order; OPENBLAS=0, for libgomp cannot
THREADED ?= team ops optimizer mlp augment augmented regularize online ensemble data tuned fused gemm bits training recipe early_stopping processes processes_ensemble processes_faults
ARCHER := $(wildcard $(if $(filter check-threads,$(MAKECMDGOALS)),$(shell clang -print-resource-dir)/../../libarcher.so))
.PHONY: check-threads
check-threads:
ifneq ($(ARCHER),)
	@$(MAKE) --no-print-directory CC=clang CUDA=0 OPENBLAS=0 SAN=thread B=build/threads \
		build/threads/train $(THREADED:%=build/threads/tests/test_%)
	@TESSERA=build/threads/train OMP_TOOL_LIBRARIES=$(ARCHER) TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
		TESSERA_TEST_STRIDE=$${TESSERA_TEST_STRIDE:-25} tests/run.sh $(THREADED:%=build/threads/tests/test_%)
else
	@echo 'skipped: make check-threads needs clang and libarcher.so (apt-get install clang libomp-dev)'
endif

# what make install installs, used from another folder
.PHONY: check-install
check-install: all
	+@tests/install.sh $(CC)

# for any x86-64, and for aarch64, under qemu
.PHONY: check-emulated
check-emulated:
	@tests/emulated.sh

# the GPU part alone; OLD=1 runs what was built elsewhere as it is
check-gpu: $(if $(filter 1,$(OLD)),,$(GPU_TESTS))
	@JOBS=1 tests/run.sh $(GPU_TESTS)

run-tests: probe required $(if $(HAVE_CMOCKA),$(B)/train $(TESTS))
ifeq ($(HAVE_CMOCKA),)
	@echo 'make check needs cmocka: $(SUDO)apt-get install libcmocka-dev'; exit 1
endif
	@CC='$(CC)' TESSERA=$(B)/train tests/run.sh $(TESTS)

# --- fuzzing: a harness for each parser in tests/fuzz, with its seeds; clang's libFuzzer, built apart in build/fuzz;
#     tests/fuzz/campaign.sh runs for longer and measures coverage ---

SECONDS ?= 60
FUZZ_SUPPORT := tests/fuzz/forbid tests/fuzz/support tests/markup_check
FUZZERS := $(filter-out main forbid support,$(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c)))
# calls of these go through tests/fuzz/forbid.c
WRAPPED := dlopen fopen freopen open rename unlink remove mkdir truncate popen system
LIBFUZZER := $(findstring fuzzer,$(SAN))
HAVE_LIBFUZZER := $(if $(filter fuzz,$(MAKECMDGOALS)),$(call probe,libfuzzer,clang -fsanitize=fuzzer$(,)address$(,)undefined,$(hash)include <stddef.h>\nint LLVMFuzzerTestOneInput(const unsigned char *data$(,) size_t size) { return !data && size; }))

# without SAN=fuzzer-no-link the harness runs on the files that are named
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(patsubst %,$(B)/%.o,$(FUZZ_SUPPORT) $(if $(LIBFUZZER),,tests/fuzz/main)) $(OBJECTS)
	@mkdir -p $(@D)
	@echo '  link  $@'
	$(Q)$(CC) $(ALL_CFLAGS) $(if $(LIBFUZZER),-fsanitize=fuzzer) $(WRAPPED:%=-Wl$(,)--wrap=%) $(LDFLAGS) $^ $(LDLIBS) -o $@

-include $(FUZZERS:%=$(B)/tests/fuzz/%.d) $(FUZZ_SUPPORT:%=$(B)/%.d)

# JOBS harnesses at once, each with a log of its own; after a finding no further one starts
JOBS ?= 1
.PHONY: fuzz fuzzers
fuzzers: $(FUZZERS:%=$(B)/fuzz/%)
fuzz:
ifneq ($(HAVE_LIBFUZZER),)
	@$(MAKE) --no-print-directory CC=clang CUDA=0 OPENBLAS=0 SAN=fuzzer-no-link,address,undefined B=build/fuzz fuzzers
	@cd build/fuzz && mkdir -p findings $(FUZZERS:%=corpus/%) && printf '%s\n' $(FUZZERS) | xargs -P $(JOBS) -I NAME sh -c \
		'fuzz/NAME -max_total_time=$(SECONDS) -timeout=10 -print_final_stats=1 -verbosity=0 -artifact_prefix=findings/NAME- \
		corpus/NAME $(CURDIR)/tests/fuzz/seeds/NAME > NAME.log 2>&1 && sed -n "s/^stat::number_of_executed_units: */NAME: executions /p" \
		NAME.log || { cat NAME.log; exit 255; }'
else
	@echo 'skipped: make fuzz needs clang and its libFuzzer (apt-get install clang libclang-rt-dev)'
endif

# --- soak: trainings that are killed, interrupted and obstructed at random moments ---

.PHONY: soak
soak: all
	@KILLS=$(or $(KILLS),1000) INTERRUPTS=$(or $(INTERRUPTS),100) tests/soak.py $(B)/train

# --- figures: every table and chart for this machine ---

FIGURES ?= docs/figures/cpu
TAG ?= $(notdir $(FIGURES))
.PHONY: figures
figures: all
	@data/fetch.sh
	@tests/bench/figures.sh measure $(FIGURES)
	@tests/bench/figures.sh write $(FIGURES) $(TAG)

# --- care ---

STYLED := $(filter-out tests/reference/%,$(shell git ls-files -co --exclude-standard '*.c' '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null))
format:
	@clang-format -i $(STYLED)

# layout, and 110 columns in comments too (clang-format's own reflow would spoil the tables in them)
check-format:
	@clang-format --dry-run --Werror $(STYLED)
	@awk 'length($$0) > 110 { print FILENAME ":" FNR ": over 110 columns"; wide = 1 } END { exit wide }' $(STYLED)

# every C file with the command that compiles it
entry = {"directory": "$(CURDIR)"$(,) "file": "$1"$(,) "command": "$(CC) $(ALL_CFLAGS) $(CPPFLAGS) -c $1"}
compile_commands.json: $(B)/buildinfo.h FORCE
	$(file >$@,[)
	$(foreach source,$(SOURCES) $(wildcard tests/*.c),$(file >>$@,$(call entry,$(source))$(,)))
	$(file >>$@,$(call entry,train.c)])
	@echo '  wrote $@'

lint: $(B)/buildinfo.h
	clang-tidy --quiet --warnings-as-errors='*' train.c $(SOURCES) -- -std=gnu11 -fopenmp $(CPPFLAGS)

# --- installation: SOURCE:FILE below PREFIX; the program looks for configs and data in ../share/tessera ---

VERSION := $(shell sed -n 's/.*TESSERA_VERSION "\(.*\)"/\1/p' src/base/platform.h)
INSTALLED := train:bin/tessera data/fetch.sh:share/tessera/data/fetch.sh kernels/gemm.h:include/tessera/gemm.h \
	kernels/gemm.h:share/tessera/kernels/gemm.h \
	$(foreach config,$(wildcard configs/*.cfg),$(config):share/tessera/$(config)) \
	$(B)/tessera.pc:share/pkgconfig/tessera.pc $(B)/tessera.1:share/man/man1/tessera.1 \
	src/install/tessera.bash:share/bash-completion/completions/tessera \
	src/install/tessera.zsh:share/zsh/site-functions/_tessera \
	src/install/tessera.fish:share/fish/vendor_completions.d/tessera.fish
install: all $(B)/tessera.1 $(B)/tessera.pc
	@$(foreach entry,$(INSTALLED),install -D -m $(if $(filter train:% %.sh,$(entry)),755,644) $(subst :, $(DESTDIR)$(PREFIX)/,$(entry)) &&) \
	echo '  installed in $(DESTDIR)$(PREFIX); try: $(PREFIX)/bin/tessera --config validation'

uninstall:
	@rm -f $(foreach entry,$(INSTALLED),$(DESTDIR)$(PREFIX)/$(lastword $(subst :, ,$(entry))))
	-@rmdir -p --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/share/tessera/configs $(DESTDIR)$(PREFIX)/share/tessera/data $(DESTDIR)$(PREFIX)/share/tessera/kernels \
		$(DESTDIR)$(PREFIX)/include/tessera 2>/dev/null

$(B)/tessera.1: src/install/man.sh $(B)/train
	@src/install/man.sh $(B)/train > $@

# for plug-ins: gcc $$(pkg-config --cflags tessera)
$(B)/tessera.pc: FORCE
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: tessera' 'Version: $(VERSION)' \
		'Description: the contract of a GEMM backend: #include <tessera/gemm.h>' 'Cflags: -I$${prefix}/include' > $@

clean:
	rm -rf build train
