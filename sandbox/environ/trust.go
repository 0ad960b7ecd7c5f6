package environ

import "strings"

// A Trust is what one kind of program needs to take certificates of egressd's
// authority.
type Trust struct {
	Who       string
	variables []string // that name the bundle
	how       string   // what else is to be typed, with BUNDLE and CA for the files
}

// Trusts are the kinds of programs that are known. CA is what "egressd ca
// --pem" prints.
func Trusts() []Trust {
	return []Trust{
		{"OpenSSL, Go, Python, Ruby", []string{"SSL_CERT_FILE"}, ""},
		{"curl", []string{"CURL_CA_BUNDLE"}, ""},
		{"git", []string{"GIT_SSL_CAINFO"}, ""},
		{"wget", nil, "SSL_CERT_FILE where it is built with OpenSSL, else wget --ca-certificate=BUNDLE"},
		{"requests, pip", []string{"REQUESTS_CA_BUNDLE", "PIP_CERT"}, ""},
		{"Node", []string{"NODE_EXTRA_CA_CERTS"}, "and NODE_USE_ENV_PROXY=1 for its fetch to use the proxy"},
		{"npm", []string{"NPM_CONFIG_CAFILE"}, ""},
		{"Deno", []string{"DENO_CERT"}, ""},
		{"AWS SDKs and CLI", []string{"AWS_CA_BUNDLE"}, ""},
		{"cargo", []string{"CARGO_HTTP_CAINFO"}, ""},
		{"Java", nil, "keytool -importcert -noprompt -alias egressd -file CA -keystore STORE -storepass changeit, then -Djavax.net.ssl.trustStore=STORE"},
		{"Debian, Ubuntu, Alpine", nil, "cp CA /usr/local/share/ca-certificates/egressd.crt && update-ca-certificates"},
		{"Fedora, RHEL", nil, "cp CA /etc/pki/ca-trust/source/anchors/egressd.pem && update-ca-trust"},
		{"Chromium, Firefox (NSS)", nil, "certutil -d sql:$HOME/.pki/nssdb -A -n egressd -t C,, -i CA; Firefox: the folder of its profile"},
	}
}

// ForTrust have programs trust the bundle at path, a path as they see
// it.
func ForTrust(path string) []Variable {
	var all []Variable
	for _, t := range Trusts() {
		for _, name := range t.variables {
			all = append(all, Variable{name, path})
		}
	}
	return all
}

// ForOneRun returns variables by which programs trust the bundle at path, and that replace no setting of a file, as PIP_CERT
// does. Programs without one read the bundle of the system or REQUESTS_CA_BUNDLE.
func ForOneRun(path string) (all []Variable) {
	for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"} {
		all = append(all, Variable{name, path})
	}
	return all
}

// Instruction is what to type for a bundle at that path, or so named.
func (t Trust) Instruction(bundle string) string {
	var parts []string
	for _, name := range t.variables {
		parts = append(parts, name+"="+bundle)
	}
	text := strings.Join(parts, " ")
	if t.how != "" && text != "" {
		text += ", "
	}
	return text + strings.ReplaceAll(t.how, "BUNDLE", bundle)
}

// ByName are vars as an object.
func ByName(vars []Variable) map[string]string {
	object := map[string]string{}
	for _, v := range vars {
		object[v.Name] = v.Value
	}
	return object
}
