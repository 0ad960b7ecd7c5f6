package policy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
)

// makeKeys makes a key pair for signing bundles.
func makeKeys(stdout, stderr io.Writer, name, algorithm string, asJSON bool) error {
	private, public, err := newKeys(algorithm)
	if err != nil {
		return err
	}
	key, pub := name+".key.pem", name+".pub.pem"
	if _, err := os.Lstat(pub); err == nil {
		return hint.Failed(fmt.Errorf("%s exists, and was left as it is", pub), "egressd policy build --keygen NAME")
	}
	for _, f := range []struct {
		path string
		text []byte
		mode os.FileMode
	}{{key, private, 0o600}, {pub, public, 0o644}} {
		if err := createFile(f.path, f.text, f.mode); err != nil {
			return hint.Failed(fmt.Errorf("write a key: %w", err), "egressd policy build --keygen NAME, where NAME is new")
		}
		fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(f.path))
		if !asJSON {
			continue
		}
		if err := cli.PrintJSON(stdout, cli.Written{Path: f.path, Written: true}); err != nil {
			return err
		}
	}
	hint.Sayf(stderr, "egressd policy build%s -o bundle.tar.gz --sign %s --valid 720h", toPack(stderr), shell.Word(key))
	return nil
}

// toPack returns the arguments of policy build for the Rego that is here: that of the policy file needs none. If there is
// none, toPack says how to make some first.
func toPack(stderr io.Writer) string {
	if (&policyBuildOptions{}).packsConfig() {
		return ""
	}
	for _, dir := range []string{"policy", "."} {
		if found, err := filepath.Glob(filepath.Join(dir, "*.rego")); err == nil && len(found) > 0 {
			return " " + dir
		}
	}
	hint.Sayf(stderr, "there is no Rego here yet: egressd init rego egress-policy")
	return " egress-policy/policy"
}

func newKeys(algorithm string) (private, public []byte, err error) {
	var key, pub any
	switch algorithm {
	case "", "ES256":
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		key, pub = k, k.Public()
	case "EdDSA":
		if pub, key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, hint.Misused(fmt.Errorf("no keys are made for the algorithm %q", algorithm), "egressd policy build --keygen NAME --algorithm ES256, or EdDSA")
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	open, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}), nil
}

// createFile writes a new file. It removes the file again if writing fails.
func createFile(path string, text []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
