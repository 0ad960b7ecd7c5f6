//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// allowedNames is every proxy's allow-list, beside the name that it knows the
// origins by. The order is not significant to any of them.
func allowedNames() []string {
	return []string{"api.example.test", "registry.example.test", "git.example.test", "pypi.example.test"}
}

func peerNames() []string {
	return []string{floorHTTP, floorEpoll, "smokescreen", "squid", "tinyproxy", "goproxy", "mitmproxy"}
}

// peer returns how to start a peer, or an [*absence].
func peer(name, source, base string) (*proxy, error) {
	switch name {
	case floorHTTP:
		return &proxy{name: name, host: originName, command: floorCommand(name)}, nil
	case floorEpoll:
		return &proxy{name: name, host: originName, command: floorCommand(name), tunnelsOnly: true}, nil
	case "squid":
		return installed(&proxy{name: name, host: originName, command: squidCommand}, "squid")
	case "tinyproxy":
		return installed(&proxy{name: name, host: "localhost", command: tinyproxyCommand}, "tinyproxy")
	case "mitmproxy":
		return installed(&proxy{
			name: name, host: "127.0.0.1", command: mitmproxyCommand,
			certificate: "conf/mitmproxy-ca-cert.pem", insideOnly: true, h2: true,
		}, "mitmdump")
	case "smokescreen":
		return built(&proxy{name: name, host: "127.0.0.1"}, source, base, "github.com/stripe/smokescreen", smokescreenCommand)
	default:
		return built(&proxy{name: name, host: originName, certificate: "ca.pem"}, source, base, "./peers/goproxy", goproxyCommand)
	}
}

// installed checks for a program of the Debian package with the proxy's name.
func installed(p *proxy, program string) (*proxy, error) {
	if _, err := systemBinary(program); err != nil {
		return nil, &absence{p.name + " is not installed", "apt-get install --no-install-recommends " + p.name}
	}
	return p, nil
}

// systemBinary looks also where daemons are installed, which an ordinary
// user's PATH leaves out.
func systemBinary(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath(filepath.Join("/usr/sbin", name))
}

// built builds a package of bench's module, which is in egressd's source, into base.
func built(p *proxy, source, base, pkg string, command func(binary string) commandFunc) (*proxy, error) {
	binary, module := filepath.Join(base, p.name), filepath.Join(source, "bench")
	build := exec.Command("go", "build", "-C", module, "-o", binary, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		why, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
		return nil, &absence{fmt.Sprintf("it does not build: %v: %s", err, why), "cd " + module + " && go build " + pkg}
	}
	p.command = command(binary)
	return p, nil
}

type commandFunc = func(dir string, port int, o origins) (*exec.Cmd, error)

// A variant is one way in which egressd is measured.
type variant struct {
	name       string
	durability string
	rego       bool // the allow-list is a policy in Rego
	off        bool // what goes into the log is thrown away
	hosts      int  // further ones that are allowed
}

func variants() []variant {
	return []variant{
		{name: "disk", durability: "disk"},
		{name: "process", durability: "process"},
		{name: "off", durability: "process", off: true},
		{name: "rego", durability: "process", rego: true},
	}
}

// egressd returns how to start an egressd in a variant, which is called name, or an [*absence].
func egressd(binary, name string, v variant) (*proxy, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, &absence{binary + " does not exist", "go build -o " + binary + " ./cmd/egressd"}
	}
	command := func(dir string, port int, o origins) (*exec.Cmd, error) {
		config := filepath.Join(dir, "egressd.yaml")
		if err := writeFile(filepath.Join(dir, "roots.pem"), string(o.Root)); err != nil {
			return nil, err
		}
		if err := writeFile(filepath.Join(dir, "policy.rego"), regoPolicy(o)); err != nil {
			return nil, err
		}
		if v.hosts > 0 {
			if err := writeFile(filepath.Join(dir, hostsFile), furtherHosts(v.hosts)); err != nil {
				return nil, err
			}
		}
		return exec.Command(path, "serve", "--config", config), writeFile(config, egressdConfig(dir, port, o, v))
	}
	return &proxy{name: name + " " + v.name, host: originName, command: command, certificate: "ca/ca.pem", h2: true, announces: true}, nil
}

// egressdConfig allows the origin port by port. The one that is inspected has a
// rule about methods and no wider one: that would leave nothing to look for.
func egressdConfig(dir string, port int, o origins, v variant) string {
	list := allowList(o)
	if v.rego {
		list = fmt.Sprintf("rego: [%q]\n", filepath.Join(dir, "policy.rego"))
	}
	if v.hosts > 0 {
		list += fmt.Sprintf("allow_file: [%q]\n", filepath.Join(dir, hostsFile))
	}
	return fmt.Sprintf(`version: 1
listen:
  proxy: ["127.0.0.1:%[1]d"]
%[2]sunsafe_allow: ["127.0.0.0/8:*"]
upstream: {dns: ["127.0.0.1:%[3]d"]}
tls: {ca_dir: %[4]q, extra_roots: [%[5]q]}
audit: {dir: %[6]q, durability: %[7]s}
`, port, list, o.DNS, filepath.Join(dir, "ca"), filepath.Join(dir, "roots.pem"), filepath.Join(dir, "log"), v.durability)
}

const hostsFile = "hosts.txt"

// furtherHosts is a file of n hosts that nobody asks for.
func furtherHosts(n int) string {
	var hosts strings.Builder
	for i := range n {
		fmt.Fprintf(&hosts, "h%d.further.test\n", i)
	}
	return hosts.String()
}

func allowList(o origins) string {
	var allow strings.Builder
	fmt.Fprintf(&allow, "allow:\n  - {host: \"%[1]s:%[2]d\", methods: [GET]}\n  - {host: \"*.%[1]s:%[2]d\", methods: [GET]}\n  - {host: \"%[1]s:%[3]d\", methods: [GET]}\n", originName, o.Inspected, o.H2)
	for _, whole := range []int{o.Flight, o.HTTP, o.TLS, o.Bulk} {
		fmt.Fprintf(&allow, "  - %q\n", net.JoinHostPort(originName, strconv.Itoa(whole)))
	}
	for _, name := range allowedNames() {
		fmt.Fprintf(&allow, "  - %s\n", name)
	}
	return allow.String()
}

// regoPolicy allows the same in Rego.
func regoPolicy(o origins) string {
	return fmt.Sprintf(`package egress

allow contains {"rule": "origin"} if {
	input.destination.host == %[1]q
	input.destination.port in {%[2]d, %[3]d, %[4]d, %[5]d}
}

allow contains {"rule": "inspected"} if {
	host.any(input.destination.host, [%[1]q, %[6]q])
	input.destination.port in {%[7]d, %[9]d}
	input.http.method == "GET"
}

allow contains {"rule": "names"} if {
	host.any(input.destination.host, ["%[8]s"])
	input.destination.port in {80, 443}
}
`, originName, o.Flight, o.HTTP, o.TLS, o.Bulk, "*."+originName, o.Inspected, strings.Join(allowedNames(), `", "`), o.H2)
}

// squidCommand: one process, no cache, its usual access log.
func squidCommand(dir string, port int, _ origins) (*exec.Cmd, error) {
	binary, err := systemBinary("squid")
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(dir, "logs")
	if err := os.Mkdir(logs, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(logs, 0o777); err != nil { // started by root, squid becomes another user
		return nil, err
	}
	hosts, config := filepath.Join(dir, "hosts"), filepath.Join(dir, "squid.conf")
	if err := writeFile(hosts, "127.0.0.1 "+originName+"\n"); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`http_port 127.0.0.1:%d
hosts_file %s
acl named dstdomain %s %s
http_access allow named
http_access deny all
cache deny all
access_log stdio:%s/access.log
cache_log %s/cache.log
coredump_dir %s
pid_filename none
pinger_enable off
shutdown_lifetime 0 seconds
max_filedescriptors 20000
visible_hostname bench
`, port, hosts, originName, strings.Join(allowedNames(), " "), logs, logs, logs)
	return exec.Command(binary, "-N", "-f", config), writeFile(config, text)
}

// tinyproxyCommand: filter with the names, its usual log.
func tinyproxyCommand(dir string, port int, _ origins) (*exec.Cmd, error) {
	binary, err := systemBinary("tinyproxy")
	if err != nil {
		return nil, err
	}
	filter, config := filepath.Join(dir, "filter"), filepath.Join(dir, "tinyproxy.conf")
	if err := writeFile(filter, tinyproxyFilter()); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`Port %d
Listen 127.0.0.1
Timeout 600
MaxClients 8192
Allow 127.0.0.1
Filter "%s"
FilterDefaultDeny Yes
LogFile "%s/log"
LogLevel Connect
`, port, filter, dir)
	return exec.Command(binary, "-d", "-c", config), writeFile(config, text)
}

func tinyproxyFilter() string {
	var filter strings.Builder
	for _, name := range append([]string{"localhost"}, allowedNames()...) {
		filter.WriteString("^" + strings.ReplaceAll(name, ".", `\.`) + "$\n")
	}
	return filter.String()
}

// smokescreenCommand: one role for everyone, in enforce mode.
func smokescreenCommand(binary string) commandFunc {
	return func(dir string, port int, _ origins) (*exec.Cmd, error) {
		acl, config := filepath.Join(dir, "acl.yaml"), filepath.Join(dir, "config.yaml")
		var names strings.Builder
		for _, name := range append([]string{"127.0.0.1"}, allowedNames()...) {
			fmt.Fprintf(&names, "    - %s\n", name)
		}
		text := "version: v1\nservices: []\ndefault:\n  name: default\n  project: bench\n  action: enforce\n  allowed_domains:\n" + names.String()
		if err := writeFile(acl, text); err != nil {
			return nil, err
		}
		if err := writeFile(config, "allow_missing_role: true\n"); err != nil {
			return nil, err
		}
		return exec.Command(binary, "--config-file", config, "--listen-ip", "127.0.0.1", "--listen-port", strconv.Itoa(port),
			"--allow-range", "127.0.0.0/8", "--egress-acl-file", acl), nil
	}
}

func goproxyCommand(binary string) commandFunc {
	return func(dir string, port int, o origins) (*exec.Cmd, error) {
		roots := filepath.Join(dir, "roots.pem")
		args := []string{"-inspect", strconv.Itoa(o.Inspected), "-roots", roots, "-authority", filepath.Join(dir, "ca.pem"), strconv.Itoa(port), originName}
		return exec.Command(binary, append(args, allowedNames()...)...), writeFile(roots, string(o.Root))
	}
}

// mitmproxyCommand: mitmdump, which keeps no flows, and says nothing of them.
func mitmproxyCommand(dir string, port int, o origins) (*exec.Cmd, error) {
	binary, err := systemBinary("mitmdump")
	if err != nil {
		return nil, err
	}
	roots := filepath.Join(dir, "roots.pem")
	return exec.Command(binary, "--quiet", "--listen-host", "127.0.0.1", "--listen-port", strconv.Itoa(port),
		"--set", "confdir="+filepath.Join(dir, "conf"),
		"--set", "ssl_verify_upstream_trusted_ca="+roots), writeFile(roots, string(o.Root))
}

// writeFile writes a configuration file that another user may have to read.
func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
