// Package doctorcmd has egressd doctor, a file for each thing that it looks at, and egressd
// selftest.
package doctorcmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// New returns egressd doctor.
func New() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps egressd from working here, or from holding",
		Long: `Doctor looks at this machine, this shell's variables and egressd's own files: the
namespaces that egressd run needs, the policy and who could write it, proxy
variables that lead past egressd, sockets that lead out of a sandbox, the
authority and who trusts it, the log and the clock, the rules that lead to
listen.transparent, and who could come to listen.admin. It changes nothing, and sends
nothing (but see --pod).

Each finding comes with what to do. It exits with 0 where there is none, with 1
where there is one, and with 2 where it could not look.`,
		Example: `  egressd doctor
  egressd doctor --container web --json
  docker exec web egressd doctor --inside`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.OutOrStdout())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().BoolVar(&o.pod, "pod", false, "look at this container of a pod instead: whether the rules of pod-init hold for it (sends one empty datagram to an address that nobody has)")
	cmd.Flags().StringVar(&o.container, "container", "", "look at the running container `NAME` instead, from outside, by Docker's API")
	cmd.Flags().StringVar(&o.docker, "docker", "", "`PATH` of the socket of Docker or Podman, for --container (default: $DOCKER_HOST, else /run/docker.sock)")
	cmd.Flags().BoolVar(&o.inside, "inside", false, "look from within a container instead, at what leads out of it")
	cmd.Flags().BoolVar(&o.serving, "serving", false, "look only whether egressd serve runs here and listens, for the health check of a container")
	cmd.Flags().Uint32Var(&o.podUser, "uid", PodUser, "`USER` that egressd runs as, for --pod")
	return cmd
}

type doctorOptions struct {
	config string

	pod     bool
	podUser uint32

	container, docker string
	inside, serving   bool

	json bool
}

// A Symptom is what doctor says of one thing. Without a fix it is as it should be.
type Symptom struct {
	Check string `json:"check"`         // what was looked at, in a word
	Says  string `json:"says"`          // what is so
	Fix   string `json:"fix,omitempty"` // what to type or to write
}

func (o *doctorOptions) run(w io.Writer) error {
	if o.pod {
		return sayFindings(w, PodFindings(o.podUser), o.json)
	}
	if o.container != "" {
		return o.lookAt(w)
	}
	if o.inside {
		return sayFindings(w, insideFindings(os.Getenv), o.json)
	}
	if o.serving {
		cfg, err := config.Load(o.config)
		if err != nil {
			return err
		}
		return sayFindings(w, servingFindings(cfg), o.json)
	}
	all := append(machineFindings(), socketFindings(hostpaths.HostSockets(nil))...)
	cfg, err := config.Load(o.config)
	var none *config.NotFoundError
	switch {
	case errors.As(err, &none):
		all = append(all, Symptom{"policy", none.Error(), "egressd init"})
	case err != nil:
		all = append(all, Symptom{"policy", err.Error(), "egressd policy check"})
	default:
		all = append(all, configFindings(cfg, os.Getenv, time.Now())...)
	}
	return sayFindings(w, all, o.json)
}

// sayFindings prints all, and returns 1 as a status where one has a fix.
func sayFindings(w io.Writer, all []Symptom, asJSON bool) error {
	var wrong int
	for _, f := range all {
		mark := "✓"
		if f.Fix != "" {
			mark = "✗"
			wrong++
		}
		if asJSON {
			if err := cli.PrintJSON(w, f); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(w, "%s %s: %s\n", mark, f.Check, printable.Text(f.Says))
		if f.Fix != "" {
			fmt.Fprintf(w, "  fix: %s\n", printable.Text(f.Fix))
		}
	}
	if wrong > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}

// machineFindings makes a sandbox, and says why where there can be none.
func machineFindings() []Symptom {
	tried, redirected, err := selftest(false)
	if err != nil {
		return []Symptom{{"sandbox", exits.NoSandbox(err).Error(), sandboxFix()}}
	}
	all := []Symptom{{Check: "sandbox", Says: fmt.Sprintf("can be made; self-test %d of %d", len(tried), len(tried))}}
	if err := exits.Escaped(tried); err != nil {
		all[0] = Symptom{"sandbox", err.Error(), "egressd selftest"}
	}
	capture := Symptom{Check: "capture", Says: "tproxy"}
	if redirected {
		capture = Symptom{"capture", "NAT: the kernel has no tproxy, so that datagrams are refused without a record", "modprobe -a nft_tproxy nf_tproxy_ipv4 nf_tproxy_ipv6, as root"}
	}
	all = append(all, capture)
	if os.Geteuid() == 0 {
		all = append(all, Symptom{"user", "root: what a program in a sandbox writes into root's files, root will run outside", "start egressd as an ordinary user"})
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
func socketFindings(paths []string) []Symptom {
	var open []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket != 0 && mayWrite(path) {
			open = append(open, path)
		}
	}
	if len(open) == 0 {
		return []Symptom{{Check: "sockets", Says: "none leads out that egressd knows of"}}
	}
	return []Symptom{{"sockets", "who connects to " + strings.Join(open, ", ") + " has others act outside; egressd run hides them", "keep them out of containers and sandboxes that use proxy variables"}}
}

func mayWrite(path string) bool {
	const write = 2
	return syscall.Access(path, write) == nil
}

// configFindings are about what the policy file says, and the variables and files that
// belong to it.
func configFindings(c *config.Config, getenv func(string) string, now time.Time) []Symptom {
	all := []Symptom{policyFinding(c)}
	all = append(all, variableFindings(c, getenv)...)
	all = append(all, logFinding(c), clockFinding(c, now))
	all = append(all, captureFindings(c)...)
	all = append(all, operatorFindings(c)...)
	all = append(all, engineFindings(c)...)
	all = append(all, sinkFindings(c)...)
	all = append(all, anchorFindings(c)...)
	return append(all, trustFindings(c, getenv)...)
}

// policyFinding is about who else could write the policy.
func policyFinding(c *config.Config) Symptom {
	const fix = "chmod go-w "
	for path := c.Path; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return Symptom{"policy", err.Error(), "egressd policy check"}
		}
		if others := info.Mode() & 0o022; others != 0 && info.Mode()&os.ModeSticky == 0 {
			return Symptom{"policy", "other users may write " + path, fix + path}
		}
		if path == filepath.Dir(path) {
			break
		}
	}
	if dir, err := os.Getwd(); err == nil && hostpaths.IsOrHolds(dir, c.Path) && !isOwnPlace(c.Path) {
		return Symptom{"policy", c.Path + " lies in the working directory, which a program in a container may write", "mv " + c.Path + " ~/.config/egressd/" + config.FileName}
	}
	return Symptom{Check: "policy", Says: c.Path}
}

// isOwnPlace reports whether a policy is where that of its user belongs.
func isOwnPlace(path string) bool {
	dir, err := os.UserConfigDir()
	return err == nil && hostpaths.IsOrHolds(dir, path)
}

// variableFindings are about proxy variables: what they name, and what they leave
// out.
func variableFindings(c *config.Config, getenv func(string) string) []Symptom {
	var all []Symptom
	listeners := strings.Join(c.File.Listen.Proxy, " ")
	var through bool
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		value := getenv(name)
		if value == "" {
			continue
		}
		address := value[strings.LastIndexAny(value, "/@")+1:]
		if address == "" || !strings.Contains(listeners, address) {
			all = append(all, Symptom{"variables", name + " does not lead to a listener of the policy", `eval "$(egressd env)"`})
			continue
		}
		through = true
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if past := pastProxy(getenv(name)); through && len(past) > 0 {
			all = append(all, Symptom{"variables", name + " leads past egressd for " + strings.Join(past, ", "), `eval "$(egressd env)"`})
		}
	}
	if len(all) == 0 {
		all = append(all, Symptom{Check: "variables", Says: "none leads elsewhere"})
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
func logFinding(c *config.Config) Symptom {
	dir, err := c.AuditDir()
	if err != nil {
		return Symptom{"log", err.Error(), "egressd serve, which names its folder"}
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Symptom{Check: "log", Says: dir + " is there from the first start on"}
	case err != nil:
		return Symptom{"log", err.Error(), "ls -ld " + dir}
	case info.Mode()&0o077 != 0:
		return Symptom{"log", "other users may look into " + dir, "chmod 700 " + dir}
	}
	return boundFinding(c, dir)
}

// clockFinding is about a clock that is behind what was written by it.
func clockFinding(c *config.Config, now time.Time) Symptom {
	paths := []string{c.Path}
	if dir, err := c.AuditDir(); err == nil {
		segments, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is sound
		paths = append(paths, segments...)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(now.Add(time.Minute)) {
			return Symptom{"clock", "it is behind the last change of " + path, "timedatectl set-ntp true"}
		}
	}
	return Symptom{Check: "clock", Says: now.UTC().Format(time.RFC3339)}
}

// trustFindings are about programs that do not read the system's certificates,
// where the policy has TLS end at egressd.
func trustFindings(c *config.Config, getenv func(string) string) []Symptom {
	if !c.Inspects() {
		return []Symptom{{Check: "certificates", Says: "the policy looks into no TLS"}}
	}
	if _, err := c.CADir(); err != nil {
		return []Symptom{{"certificates", err.Error(), "egressd ca show"}}
	}
	all := []Symptom{{Check: "certificates", Says: "egressd run tells programs of the authority; Java has to be told once: see egressd ca show"}}
	if getenv("HTTPS_PROXY") == "" && getenv("https_proxy") == "" {
		return all // nothing here goes through a proxy
	}
	for _, r := range []struct{ program, variable string }{{"node", "NODE_EXTRA_CA_CERTS"}, {"deno", "DENO_CERT"}, {"python3", "REQUESTS_CA_BUNDLE"}} {
		if _, err := exec.LookPath(r.program); err == nil && getenv(r.variable) == "" {
			all = append(all, Symptom{"certificates", r.program + " may not read the system's bundle, and " + r.variable + " names none", `egressd ca bundle -o bundle.pem; eval "$(egressd env --ca "$PWD/bundle.pem")"`})
		}
	}
	return all
}
