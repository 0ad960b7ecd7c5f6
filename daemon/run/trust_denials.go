package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/egressd/egressd/sandbox/jail"
)

// trustDenials has the program trust an authority that is made for this run, so that a denied HTTPS request is
// answered with a reason. Nothing but denials is answered with it. Without a bundle of the system there is none, and
// the program gets a TLS alert.
func (r *runner) trustDenials(p *jail.Program) {
	if r.options.NoCA {
		return
	}
	path, system, err := certs.SystemRoots()
	if err != nil {
		return
	}
	ca, err := certs.Ephemeral()
	if err != nil {
		return
	}
	r.denials = &inspect.Denials{Authority: ca, Never: r.Config.NeverInspected}
	p.Covered[path] = authority.Bundle(system, ca.PEM())
	for _, v := range environ.ForOneRun(path) {
		if _, set := os.LookupEnv(v.Name); !set {
			p.Env = environ.With(p.Env, []environ.Variable{v})
		}
	}
	coverJavaStores(p, ca.PEM())
	// The user's own authorities, such as those of a company, stay: the program sees that file with one more.
	for _, v := range environ.ForTrust(path) {
		own := os.Getenv(v.Name)
		if !filepath.IsAbs(own) || p.Covered[own] != nil {
			continue
		}
		if text, err := durable.Plain(own, maxOwnBundle); err == nil {
			p.Covered[own] = authority.Bundle(text, ca.PEM())
		}
	}
}

// coverJavaStores has the user's Java trust an authority, too. A store with a password that is not Java's own stays as it is.
func coverJavaStores(p *jail.Program, ca []byte) {
	for _, path := range javaStores() {
		text, err := durable.Plain(path, maxOwnBundle)
		if err != nil || p.Covered[path] != nil {
			continue
		}
		if store, err := certs.JavaStore(text, ca); err == nil {
			p.Covered[path] = store
		}
	}
}

// javaStores returns the key stores that the user's Java trusts unless it is told of another. Java reads no variable that
// names one, but for those of which it prints a line.
func javaStores() (paths []string) {
	homes := []string{os.Getenv("JAVA_HOME")}
	if java, err := exec.LookPath("java"); err == nil {
		if java, err = filepath.EvalSymlinks(java); err == nil {
			homes = append(homes, filepath.Dir(filepath.Dir(java)))
		}
	}
	for _, home := range homes {
		for _, name := range []string{"lib/security/cacerts", "jre/lib/security/cacerts"} { // the second is that of Java 8
			path, err := filepath.EvalSymlinks(filepath.Join(home, name))
			if err == nil && filepath.IsAbs(path) && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// maxOwnBundle bounds a file of authorities that the user's environment names, in bytes. All of them stand in one message
// to jail init.
const maxOwnBundle = 512 << 10

// answerDenials begins to answer denials, once [runner.trustDenials] has made the authority.
func (r *runner) answerDenials() {
	if r.denials != nil {
		r.Server.AnswerDenials(r.denials)
	}
}
