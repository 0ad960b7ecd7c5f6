// Package environ has the environment variables by which ordinary programs are told to go
// through a proxy, and to trust its certificates. They are a convenience, not a boundary.
package environ

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
)

// A Variable is one environment variable. Its value may be empty, which is
// not the same as the variable being absent.
type Variable struct{ Name, Value string }

// SplitListen reads a TCP address. What listens everywhere is reached at
// loopback.
func SplitListen(address string) (host, port string, err error) {
	const next = "egressd env --listen 127.0.0.1:3128"
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", hint.Misused(fmt.Errorf("the proxy's address: %w", err), next)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", hint.Misused(fmt.Errorf("%s: port %q is not a number from 1 to 65535", address, port), next)
	}
	if strings.ContainsFunc(host, notInHost) {
		return "", "", hint.Misused(errors.New("the proxy's address holds what no host name or address does"), next)
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return host, port, nil
}

func notInHost(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:", r))
}

// ReachesOnlyHere reports whether a host is this one alone, as each container has its own.
func ReachesOnlyHere(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Exceptions are what no proxy has to do with: the machine itself. curl before 7.86, wget and Python's urllib know no prefix,
// so 127.0.0.1 stands beside 127.0.0.0/8. There is no "[::1]", for which urllib and Node would look: httpx, which
// many SDKs use, does not start with it since version 0.24.
const Exceptions = "localhost,127.0.0.1,127.0.0.0/8,::1"

// ForProxy returns what each kind of program reads. Both spellings are
// set where programs differ, and the lists of exceptions are set to [Exceptions], so
// that none is inherited. host is where the proxy is, and empty for a socket.
func ForProxy(address string, user *url.Userinfo) (vars []Variable, host string, err error) {
	if path, unix := strings.CutPrefix(address, file.UnixListener); unix {
		return socketVariables(path, user), "", nil
	}
	address, overTLS := strings.CutPrefix(address, file.TLSListener)
	host, port, err := SplitListen(address)
	if err != nil {
		return nil, "", err
	}
	at := url.URL{Scheme: "http", User: user, Host: net.JoinHostPort(host, port)}
	if overTLS {
		at.Scheme = "https"
	}
	proxy := at.String()
	if !overTLS { // SOCKS5 over TLS has no name that programs know
		at.Scheme = "socks5h"
	}
	return addressVariables(proxy, at.String()), host, nil
}

// socketVariables are for curl, which has this way to write a socket.
func socketVariables(path string, user *url.Userinfo) []Variable {
	socks := (&url.URL{Scheme: "socks5h", User: user, Host: "localhost", Path: path}).String()
	return []Variable{{"ALL_PROXY", socks}, {"all_proxy", socks}, {"NO_PROXY", Exceptions}, {"no_proxy", Exceptions}}
}

func addressVariables(proxy, socks string) []Variable {
	return []Variable{
		{"HTTP_PROXY", proxy}, {"http_proxy", proxy},
		{"HTTPS_PROXY", proxy}, {"https_proxy", proxy},
		{"ALL_PROXY", socks}, {"all_proxy", socks},
		{"NO_PROXY", Exceptions}, {"no_proxy", Exceptions},
		{"NODE_USE_ENV_PROXY", "1"},
		{"npm_config_proxy", proxy}, {"npm_config_https_proxy", proxy}, {"npm_config_noproxy", Exceptions},
		{"YARN_HTTP_PROXY", proxy}, {"YARN_HTTPS_PROXY", proxy},
		{"PIP_PROXY", proxy},
		{"CARGO_HTTP_PROXY", proxy},
		// git's own configuration would win over http_proxy.
		{"GIT_CONFIG_COUNT", "1"}, {"GIT_CONFIG_KEY_0", "http.proxy"}, {"GIT_CONFIG_VALUE_0", proxy},
	}
}

// WithoutProxies returns env without the variables by which programs are told to go through a proxy, and the names
// of those that had a value. It keeps a variable if keep returns true for its value. In settings of git that stand in
// the environment, http.proxy becomes empty, which is git's word for no proxy.
func WithoutProxies(env []string, keep func(value string) bool) (rest, cut []string) {
	told := map[string]bool{}
	for _, v := range addressVariables("", "") {
		told[v.Name] = !strings.HasPrefix(v.Name, "GIT_CONFIG_") && v.Name != "NODE_USE_ENV_PROXY"
	}
	git := map[string]bool{} // names of the variables that hold the value of an http.proxy
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if n, ok := strings.CutPrefix(name, "GIT_CONFIG_KEY_"); ok && strings.EqualFold(value, "http.proxy") {
			git["GIT_CONFIG_VALUE_"+n] = true
		}
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if !told[name] && !git[name] || keep(value) {
			rest = append(rest, v)
			continue
		}
		if value != "" {
			cut = append(cut, name)
		}
		if git[name] {
			rest = append(rest, name+"=")
		}
	}
	return rest, cut
}

// Without returns env without the variables of those names.
func Without(env, names []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(names, name)
	})
}

// With returns env with vars in place of what it says of them.
func With(env []string, vars []Variable) []string {
	var names []string
	for _, v := range vars {
		names = append(names, v.Name)
	}
	env = Without(env, names)
	for _, v := range vars {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}
