package exits

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox/jail"
)

// IsInside reports whether this process seems to be in the sandbox of egressd run. It is for messages.
func IsInside() bool { return jailinit.IsInside() }

// NoSandbox wraps the error of a machine that cannot make a sandbox. Its hint never offers a weaker sandbox.
func NoSandbox(err error) error {
	next := "egressd serve, and proxy variables, for a sandbox that something else makes"
	var setup *jail.SetupError
	if jailinit.IsInside() {
		return hint.Failed(fmt.Errorf("this is inside of an egressd run, which makes no second sandbox: %w", err), "the program without egressd run: the one outside decides for it")
	}
	if path := Unreadable(); errors.Is(err, syscall.EACCES) && path != "" {
		return hint.Failed(fmt.Errorf("%w: %s cannot be read by this user, and the process of such a file belongs to root", err, path), "chmod a+r "+path)
	}
	if errors.Is(err, syscall.EMFILE) || strings.HasSuffix(err.Error(), syscall.EMFILE.Error()) {
		return hint.Failed(err, "ulimit -n 256")
	}
	if errors.As(err, &setup) && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) || strings.Contains(err.Error(), "not permitted")) {
		next = "allow unprivileged user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=15000, or in Docker --security-opt seccomp=unconfined"
	}
	return hint.Failed(err, next)
}

// Unreadable returns the path of this program if this user may execute the file but not read it, else "".
func Unreadable() string {
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		f.Close()
	}
	path, _ := os.Executable()
	if !errors.Is(err, syscall.EACCES) {
		return ""
	}
	return path
}

// NotStarted wraps the error of a program that could not be started: [NotFound], [NotExecutable], or
// else [NoSandbox].
func NotStarted(err error) error {
	var program *jail.ExecError
	switch {
	case errors.As(err, &program) && program.Missing:
		return &hint.Error{Code: NotFound, Err: err, Hint: missingHint(program.Name, program.Problem)}
	case errors.As(err, &program):
		next := "chmod +x " + shell.Word(program.Name)
		if info, err := os.Stat(program.Name); err == nil && info.Mode()&0o111 != 0 {
			next = "file " + shell.Word(program.Name) + ", which says what machine or interpreter it is for"
			if info.IsDir() {
				next = "egressd run -- COMMAND, with a program in that folder"
			}
		}
		return &hint.Error{Code: NotExecutable, Err: err, Hint: next}
	}
	return NoSandbox(err)
}

// missingHint is for a name that is no program: words of a shell that were meant for one, or what the sandbox hides.
func missingHint(name, problem string) string {
	if variable, _, is := strings.Cut(name, "="); is && variable != "" && !strings.ContainsAny(variable, "/ ") {
		return "egressd run -- env " + shell.Word(name) + " COMMAND"
	}
	switch {
	case strings.ContainsAny(name, "|&;<>()$`"):
		return "egressd run -- sh -c " + shell.Word(name)
	case len(strings.Fields(name)) > 1:
		return "egressd run -- " + strings.Join(strings.Fields(name), " ") + ", without quotes around the whole command"
	}
	if path, err := exec.LookPath(name); err == nil && problem != syscall.ENOENT.Error() { // the kernel says that of a script's interpreter
		return "egressd run --fs --share " + shell.Word(filepath.Dir(path)) + " -- COMMAND: the sandbox hides " + path + ", as --fs does all in /tmp and /run"
	}
	return "egressd run -- COMMAND, with the path of the program"
}

// Escaped returns an error if one of the attempts got out of the sandbox.
func Escaped(tried []jail.WayOut) error {
	for _, a := range tried {
		if a.Escaped != "" {
			return hint.Failed(fmt.Errorf("the sandbox does not hold: %s: %s", a.Name, a.Escaped), "egressd doctor --escapes")
		}
	}
	return nil
}
