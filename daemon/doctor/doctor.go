// Package doctor looks for what keeps egressd from working on this machine, or a sandbox from holding.
//
// It changes nothing. It sends nothing either, except [PodRules], which sends one empty datagram to an address
// that nobody has.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A Finding is the result of one check. A finding without a fix is good.
type Finding struct {
	Check string `json:"check"`         // what was looked at, in a word
	Says  string `json:"says"`          // what is so
	Fix   string `json:"fix,omitempty"` // what to type or to write
}

// String returns the finding as one line for a person, and a second line with the fix.
func (f Finding) String() string {
	if f.Fix == "" {
		return "✓ " + f.Check + ": " + printable.Text(f.Says)
	}
	return "✗ " + f.Check + ": " + printable.Text(f.Says) + "\n  fix: " + printable.Text(f.Fix)
}

// Machine looks at this machine without a policy: the sandbox that egressd run makes, and host sockets except own,
// the operator's socket of egressd.
func Machine(own string) []Finding {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	return append(append(sandboxFindings(), processFinding(jailinit.OwnProcesses(), string(mounts)), descriptorFinding()), socketFindings(others(hostpaths.HostSockets(nil), own))...)
}

func others(paths []string, own string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return hostpaths.Real(path) == hostpaths.Real(own) })
}

// processFinding is about what /proc hides. mounts is /proc/self/mounts.
func processFinding(own bool, mounts string) Finding {
	switch {
	case !own:
		return Finding{Check: "processes", Says: "/proc is partly hidden or read-only here, as in most containers, so the kernel lets no sandbox have a PID namespace: under egressd run, a program sees the processes around it"}
	case hidesUsers(mounts) && os.Geteuid() != 0:
		return Finding{"processes", "/proc hides the processes of other users (hidepid): no record names their programs", "mount -o remount,gid=GROUP /proc, as root, with a group of egressd's user"}
	}
	return Finding{Check: "processes", Says: "a sandbox can have processes of its own; those around it can be named"}
}

// hidesUsers reports whether /proc shows each user its own processes only (proc(5)).
func hidesUsers(mounts string) (hides bool) {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "/proc" || f[2] != "proc" {
			continue
		}
		hides = false
		for option := range strings.SplitSeq(f[3], ",") {
			value, is := strings.CutPrefix(option, "hidepid=")
			hides = hides || is && value != "0" && value != "off"
		}
	}
	return hides
}

// descriptorFinding says who keeps descriptors that clients of a Unix listener send from holding up others.
func descriptorFinding() Finding {
	if foreign.KernelRefuses() {
		return Finding{Check: "descriptors", Says: "the kernel refuses those that clients of a Unix listener send"}
	}
	return Finding{Check: "descriptors", Says: "before Linux 6.16 egressd itself looks for those that clients of a Unix listener send; connections there cost more"}
}

// sandboxFindings makes a sandbox, and says why it cannot be made.
func sandboxFindings() []Finding {
	tried, redirected, err := Selftest(false)
	if err != nil {
		return []Finding{{"sandbox", exits.NoSandbox(err).Error(), sandboxFix()}}
	}
	all := []Finding{{Check: "sandbox", Says: fmt.Sprintf("can be made; self-test %d of %d", len(tried), len(tried))}}
	if err := exits.Escaped(tried); err != nil {
		all[0] = Finding{"sandbox", err.Error(), "egressd doctor --escapes"}
	}
	capture := Finding{Check: "capture", Says: "tproxy"}
	if redirected {
		capture = Finding{"capture", "NAT: the kernel has no tproxy, so that datagrams are refused without a record", "modprobe -a nft_tproxy nf_tproxy_ipv4 nf_tproxy_ipv6, as root"}
	}
	all = append(all, capture)
	if os.Geteuid() == 0 {
		all = append(all, Finding{"user", "root: what a program in a sandbox writes into root's files, root will run outside", "start egressd as an ordinary user"})
	}
	return all
}

// sandboxFix is for the first thing that forbids user namespaces: egressd itself, or a setting
// of the kernel.
func sandboxFix() string {
	if path := exits.Unreadable(); path != "" {
		return "chmod a+r " + path
	}
	for _, s := range []struct{ path, forbids, fix string }{
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with \"userns,\" for egressd"},
	} {
		if text, err := os.ReadFile(s.path); err == nil && strings.TrimSpace(string(text)) == s.forbids {
			return s.fix + ", as root"
		}
	}
	return "in a container, one whose seccomp profile allows user namespaces (Docker: --security-opt seccomp=unconfined); nf_tables in the kernel"
}

// socketFindings are sockets that egressd run hides, and that other sandboxes have
// to keep away themselves.
func socketFindings(paths []string) []Finding {
	var open []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket != 0 && mayWrite(path) {
			open = append(open, path)
		}
	}
	if len(open) == 0 {
		return []Finding{{Check: "sockets", Says: "no known socket leads out of a sandbox"}}
	}
	return []Finding{{"sockets", "a program that reaches " + strings.Join(open, ", ") + " can act outside its sandbox", "use egressd run, which hides these sockets; do not mount them into containers"}}
}

func mayWrite(path string) bool {
	const write = 2
	return syscall.Access(path, write) == nil
}

// Configuration are about what the policy file says, and the variables and files that
// belong to it.
func Configuration(c *config.Config, getenv func(string) string, now time.Time) []Finding {
	all := append([]Finding{policyFinding(c)}, rulesFindings(c)...)
	all = append(all, listenerFindings(c)...)
	all = append(all, variableFindings(c, getenv)...)
	all = append(all, logFinding(c), clockFinding(c, now))
	all = append(all, captureFindings(c)...)
	all = append(all, adminFindings(c)...)
	all = append(all, engineFindings(c)...)
	all = append(all, refusedFindings(c, now)...)
	all = append(all, upstreamFindings(c)...)
	all = append(all, bundleFindings(c)...)
	all = append(all, sinkFindings(c)...)
	all = append(all, notifyFindings(c)...)
	all = append(all, anchorFindings(c)...)
	return append(all, trustFindings(c, getenv)...)
}

// policyFinding is about who else could write the policy.
func policyFinding(c *config.Config) Finding {
	const fix = "chmod go-w "
	for path := c.Path; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return Finding{"policy", err.Error(), "egressd policy check"}
		}
		if others := info.Mode() & 0o022; others != 0 && info.Mode()&os.ModeSticky == 0 {
			return Finding{"policy", "other users may write " + path, fix + path}
		}
		if path == filepath.Dir(path) {
			break
		}
	}
	if dir, err := os.Getwd(); err == nil && hostpaths.IsOrHolds(dir, c.Path) && !isOwnPlace(c.Path) {
		return Finding{"policy", c.Path + " lies in the working directory, which a program in a container may write", "mv -n " + shell.Word(c.Path) + " ~/.config/egressd/" + ownName(c.Path)}
	}
	return Finding{Check: "policy", Says: c.Path}
}

// rulesFindings compile the policy with its Rego and tests, as every command does. They also say what other layers keep
// shut of it, which is no problem of this machine.
func rulesFindings(c *config.Config) []Finding {
	const check = "rules"
	p, err := c.Compile()
	if err != nil {
		return []Finding{{check, err.Error(), cmp.Or(hint.Next(err), "egressd policy check --config "+shell.Word(c.Path))}}
	}
	all := []Finding{{Check: check, Says: "the policy can be used, and its tests pass"}}
	modes := c.File.ModeDoubts()
	for _, w := range modes {
		all = append(all, Finding{"mode", w.String(), "egressd policy suggest, and take mode: observe out of " + c.Path})
	}
	for _, w := range append(c.Doubts(), c.Overruled(p)...) {
		if slices.Contains(modes, w) {
			continue
		}
		all = append(all, Finding{Check: check, Says: "warning: " + w.String()})
	}
	return all
}

// listenerFindings are about listeners that serve whoever can reach them.
func listenerFindings(c *config.Config) (all []Finding) {
	for _, p := range c.File.OpenListeners() {
		says, fix, _ := strings.Cut(p.Message, "; ")
		all = append(all, Finding{"listener", says, fix})
	}
	return all
}

// isOwnPlace reports whether a policy is where that of its user belongs.
// ownName returns the name for a policy file in the user's own folder: the usual one, unless another file has it.
func ownName(path string) string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return config.FileName
	}
	if _, err := os.Lstat(filepath.Join(dir, "egressd", config.FileName)); err == nil {
		return shell.Word(filepath.Base(path))
	}
	return config.FileName
}

func isOwnPlace(path string) bool {
	dir, err := os.UserConfigDir()
	return err == nil && hostpaths.IsOrHolds(dir, path)
}

// variableFindings are about proxy variables: what they name, and what they leave
// out.
func variableFindings(c *config.Config, getenv func(string) string) []Finding {
	var all []Finding
	listeners := strings.Join(c.File.Listen.Proxy, " ")
	var through bool
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		value := getenv(name)
		if value == "" {
			continue
		}
		address := value[strings.LastIndexAny(value, "/@")+1:]
		if address == "" || !strings.Contains(listeners, address) {
			all = append(all, Finding{"variables", name + " does not lead to a listener of the policy", `eval "$(egressd env)"`})
			continue
		}
		through = true
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if past := pastProxy(getenv(name)); through && len(past) > 0 {
			all = append(all, Finding{"variables", name + " leads past egressd for " + strings.Join(past, ", "), `eval "$(egressd env)"`})
		}
	}
	if len(all) == 0 {
		all = append(all, Finding{Check: "variables", Says: "none leads elsewhere"})
	}
	return all
}

// pastProxy are the entries of NO_PROXY that are not the machine itself.
func pastProxy(value string) (past []string) {
	for one := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		switch one {
		case "localhost", "127.0.0.1", "::1", "[::1]", "127.0.0.0/8", ".localhost":
		default:
			past = append(past, one)
		}
	}
	return past
}

// logFinding is about who else could read or write the log.
func logFinding(c *config.Config) Finding {
	dir, err := c.AuditDir()
	if err != nil {
		return Finding{"log", err.Error(), "egressd serve, which names its folder"}
	}
	if runs, err := c.RunsDir(); err == nil {
		if err := hostpaths.MayWrite(runs); err != nil {
			return Finding{"log", "egressd run cannot keep its logs: " + err.Error(), "XDG_STATE_HOME=DIR, or audit.dir in " + c.Path + ", with a folder that you may write"}
		}
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Finding{Check: "log", Says: dir + " is there from the first start on"}
	case err != nil:
		return Finding{"log", err.Error(), "ls -ld " + dir}
	case info.Mode()&0o077 != 0:
		return Finding{"log", "other users may look into " + dir, "chmod 700 " + dir}
	}
	return boundFinding(c, dir)
}

// clockFinding is about a clock that is behind what was written by it.
func clockFinding(c *config.Config, now time.Time) Finding {
	paths := []string{c.Path}
	if dir, err := c.AuditDir(); err == nil {
		segments, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is sound
		paths = append(paths, segments...)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(now.Add(time.Minute)) {
			return Finding{"clock", "it is behind the last change of " + path, "timedatectl set-ntp true"}
		}
	}
	return Finding{Check: "clock", Says: now.UTC().Format(time.RFC3339)}
}

// trustFindings are about programs that do not read the system's certificates,
// where the policy has TLS end at egressd.
func trustFindings(c *config.Config, getenv func(string) string) []Finding {
	if !c.Inspects() {
		return []Finding{{Check: "certificates", Says: "the policy looks into no TLS"}}
	}
	if _, err := c.CADir(); err != nil {
		return []Finding{{"certificates", err.Error(), "egressd ca"}}
	}
	all := []Finding{{Check: "certificates", Says: "programs under egressd run trust egressd's CA, and Java too; elsewhere, import it into Java by hand: egressd ca --pem"}}
	if getenv("HTTPS_PROXY") == "" && getenv("https_proxy") == "" {
		return all // nothing here goes through a proxy
	}
	for _, r := range []struct{ program, variable string }{{"node", "NODE_EXTRA_CA_CERTS"}, {"deno", "DENO_CERT"}, {"python3", "REQUESTS_CA_BUNDLE"}} {
		if _, err := exec.LookPath(r.program); err == nil && getenv(r.variable) == "" {
			all = append(all, Finding{"certificates", r.program + " may not read the system's bundle, and " + r.variable + " names none", `egressd ca bundle -o bundle.pem; eval "$(egressd env --ca "$PWD/bundle.pem")"`})
		}
	}
	return all
}
