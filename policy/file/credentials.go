package file

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// A NamedCredential is one entry of the list "credentials". It opens nothing: egressd adds the secret to requests of rules
// under "allow" that name exactly one of its hosts.
type NamedCredential struct {
	// Spec merges the entry of the policy file with the table row of its kind. Its ForeignPaths are empty: see
	// [NamedCredential.Complete].
	Spec credentials.Spec

	// Foreign are the paths at which other credentials than the placeholder may pass. Default: none.
	Foreign []policy.PathPattern

	// Mints are the endpoints that hand out new secrets, as rules that deny.
	Mints []policy.Rule

	at policy.Position
}

// Complete returns the Spec with the paths for foreign credentials.
func (c *NamedCredential) Complete() credentials.Spec {
	spec := c.Spec
	for _, p := range c.Foreign {
		spec.ForeignPaths = append(spec.ForeignPaths, func(path string) bool { return policy.CanonicalPath(path) && p.Match(path) })
	}
	return spec
}

// credentialList reads the list "credentials".
func (r *reader) credentialList(into *[]NamedCredential) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "credentials") {
			if c := r.credential(item, fmt.Sprintf("credentials[%d]", i)); c != nil {
				*into = append(*into, *c)
			}
		}
		r.checkCredentialNames(n, *into)
	}
}

// A written credential is an entry as it stands in the file.
type writtenCredential struct {
	kind  string
	place placeWritten
	name  string
	hosts []string
	env   []string
	aws   credentials.AWSLimits

	docker credentials.DockerSpec
}

// placeWritten is the mapping of "for".
type placeWritten struct{ host, header, query, form, user string }

func (r *reader) credential(n *yaml.Node, what string) *NamedCredential {
	c := &NamedCredential{at: placeOf(n)}
	var w writtenCredential
	before := len(r.problems)
	r.mapping(n, what, fields{
		"for":     r.credentialFor(what+".for", &w),
		"name":    r.checked(what+".name", &w.name, func(text string) string { return unless(plainName(text), text, plainNames) }),
		"from":    r.credentialFrom(what+".from", &c.Spec.From),
		"hosts":   r.list(what+".hosts", &w.hosts, r.credentialHost),
		"env":     r.list(what+".env", &w.env, func(what string, into *string) func(*yaml.Node) { return r.checked(what, into, problemOfVariable) }),
		"foreign": r.foreign(what+".foreign", &c.Foreign),

		"user":    r.checked(what+".user", &w.docker.User, problemOfUser),
		"realm":   r.checked(what+".realm", &w.docker.Service.Realm, problemOfRealm),
		"service": r.checked(what+".service", &w.docker.Service.Service, problemOfUser),

		"regions": r.list(what+".regions", &w.aws.Regions, r.plainText(problemOfRegion)),
		"services": r.list(what+".services", &w.aws.Services, func(what string, into *string) func(*yaml.Node) {
			return word(r, what, into, credentials.AWSServiceNames()...)
		}),
		"buckets": r.list(what+".buckets", &w.aws.Buckets, r.plainText(problemOfBucket)),
		"account": r.checked(what+".account", &w.aws.Account, problemOfAccount),
	})
	for _, key := range []string{"for", "from"} {
		if !hasKey(n, key) && n.Kind == yaml.MappingNode {
			r.fail(n, "%s has no %s; write for: github and from: {file: github.token}, or the like", what, key)
		}
	}
	if len(r.problems) > before {
		return nil
	}
	r.checkAWS(n, what, &w, &c.Spec.From)
	r.checkDocker(n, what, &w)
	r.fillCredential(n, what, &w, c)
	return c
}

// checkDocker judges the keys that concern one kind, and finds the token service of the registry.
func (r *reader) checkDocker(n *yaml.Node, what string, w *writtenCredential) {
	s := &w.docker
	if w.kind != credentials.Docker {
		for _, key := range []string{"user", "realm", "service"} {
			if hasKey(n, key) {
				r.fail(n, "%s has %s, which belongs to for: docker; leave it out", what, key)
			}
		}
		return
	}
	host := "registry-1.docker.io"
	if len(w.hosts) > 0 {
		host = w.hosts[0]
	}
	known := credentials.TokenServices()[host]
	switch {
	case s.User == "":
		r.fail(n, "%s has no user; write the one that belongs to the secret", what)
	case len(w.hosts) > 1:
		r.fail(n, "%s has several hosts, and a token service hands out tokens of one registry; write an entry for each", what)
	case (s.Service.Realm == "") != (s.Service.Service == ""):
		r.fail(n, "%s has one of realm and service; write both, as the registry's challenge has them, or none", what)
	case s.Service.Realm == "":
		s.Service = known
	}
}

// plainText reads the items of a list that problemOf accepts.
func (r *reader) plainText(problemOf func(string) string) func(what string, into *string) func(*yaml.Node) {
	return func(what string, into *string) func(*yaml.Node) { return r.checked(what, into, problemOf) }
}

// checkAWS judges the keys that concern one kind.
func (r *reader) checkAWS(n *yaml.Node, what string, w *writtenCredential, from *credentials.Source) {
	if w.kind != credentials.AWS {
		for _, key := range []string{"regions", "services", "buckets", "account"} {
			if hasKey(n, key) {
				r.fail(n, "%s has %s, which belongs to for: aws; leave it out", what, key)
			}
		}
		if from.Profile != "" {
			r.fail(n, "%s has a profile, which belongs to for: aws; leave it out", what)
		}
		return
	}
	if from.OAuth != nil || from.GitHubApp != nil {
		r.fail(n, "%s.from is a server of tokens, which hands out no key of AWS; write file, env, command or profile", what)
	}
	signsS3 := slices.Contains(w.aws.Services, "s3")
	switch {
	case len(w.aws.Regions) == 0 || len(w.aws.Services) == 0:
		r.fail(n, "%s has to say what egressd signs; write regions: [eu-west-1] and services: [s3, sts], or the like", what)
	case signsS3 && len(w.aws.Buckets) == 0 && w.aws.Account == "":
		r.fail(n, "%s: a signature for s3 reaches every bucket that lets it in, also an attacker's; write buckets: [acme-build], or account with the twelve digits of yours", what)
	case !signsS3 && len(w.aws.Buckets) > 0:
		r.fail(n, "%s has buckets, and no s3 among its services; add that, or leave buckets out", what)
	case hasKey(n, "env"):
		r.fail(n, "%s has env; the variables of aws are fixed, so leave it out", what)
	case from.Field != "":
		r.fail(n, "%s.from has a field; a key of AWS has two parts, so write the file that credential_process prints, or a profile", what)
	case from.Env != "" && !strings.HasSuffix(from.Env, "ACCESS_KEY_ID"):
		r.fail(n, "%s.from.env has to end with ACCESS_KEY_ID; the variables with SECRET_ACCESS_KEY and SESSION_TOKEN in its place are read, too", what)
	}
}

// fillCredential makes the credential of what was read.
func (r *reader) fillCredential(n *yaml.Node, what string, w *writtenCredential, c *NamedCredential) {
	c.Spec.Name = cmp.Or(w.name, w.kind, w.place.host)
	var mints []credentials.Mint
	if w.kind == "" {
		c.Spec.Places = []credentials.Place{r.writtenPlace(n, what, &w.place)}
		if w.hosts != nil {
			r.fail(n, "%s has hosts, and a host under for; keep the one under for", what)
		}
	} else {
		kind := credentials.KindNamed(w.kind)
		c.Spec.Kind, c.Spec.Places, c.Spec.Prefixes = kind.Name, kind.Places, kind.Prefixes
		c.Spec.Variables, c.Spec.Bodies, c.Spec.Tenants, mints = kind.Variables, kind.Bodies, kind.Tenants, kind.Mints
		if w.kind == credentials.AWS {
			c.Spec.AWS = &w.aws
		}
		if w.kind == credentials.Docker {
			c.Spec.Docker = &w.docker
			mints = append(mints, w.docker.Service.MintsOf()...)
		}
		if w.hosts != nil {
			if !kind.Movable || len(w.hosts) == 0 {
				r.fail(n, "%s: the hosts of %s are fixed; leave hosts out, or write for: {host: example.com, header: Authorization}", what, kind.Name)
				return
			}
			c.Spec.Places = kind.PlacesAt(w.hosts)
		}
	}
	if w.env != nil {
		c.Spec.Variables = nil
		for _, name := range w.env {
			c.Spec.Variables = append(c.Spec.Variables, credentials.Variable{Name: name, Value: "{}"})
		}
	}
	if o := c.Spec.From.OAuth; o != nil {
		if u, err := url.Parse(o.TokenURL); err == nil {
			mints = append(slices.Clone(mints), credentials.Mint{Host: u.Hostname(), Paths: []string{cmp.Or(u.EscapedPath(), "/")}})
		}
	}
	for _, m := range mints {
		c.mint(&m)
	}
}

// mint adds the rules that deny an endpoint.
func (c *NamedCredential) mint(m *credentials.Mint) {
	hosts := []string{m.Host}
	if m.Host == "" {
		hosts = c.Spec.Hosts()
	}
	for _, host := range hosts {
		pattern, err := policy.ParsePattern(host)
		if err != nil {
			continue
		}
		rule := policy.Rule{
			ID: "credential:" + c.Spec.Name, Pattern: pattern, Methods: m.Methods, At: c.at, PathsFold: true,
			Reason: "this endpoint hands out new secrets, which egressd could not keep out of the sandbox",
		}
		for _, path := range m.Paths {
			for _, same := range spellings(path) {
				if p, err := policy.ParsePathPattern(same); err == nil {
					rule.Paths = append(rule.Paths, p)
				}
			}
		}
		c.Mints = append(c.Mints, rule)
	}
}

// spellings are the paths that servers take for one: with a slash at the end, with what lies below, with a format.
func spellings(path string) []string {
	if path == "/" || strings.HasSuffix(path, "/**") {
		return []string{path}
	}
	return []string{path, path + "/**", path + ".*", path + ":*"}
}

// credentialFor reads a kind, or a mapping that says where the secret goes.
func (r *reader) credentialFor(what string, w *writtenCredential) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			word(r, what, &w.kind, credentials.KindNames()...)(n)
			return
		}
		p := &w.place
		r.mapping(n, what, fields{
			"host":   r.credentialHost(what+".host", &p.host),
			"header": r.checked(what+".header", &p.header, problemOfHeader),
			"query":  r.checked(what+".query", &p.query, problemOfParameter),
			"form":   word(r, what+".form", &p.form, "bare", "bearer", "token", "basic", "basic-user"),
			"user":   r.checked(what+".user", &p.user, problemOfUser),
		})
		switch {
		case !hasKey(n, "host"):
			r.fail(n, "%s has no host; add \"host: api.example.com\" or the like", what)
		case hasKey(n, "header") == hasKey(n, "query"):
			r.fail(n, "%s has to have one of header and query; write header: Authorization, or the like", what)
		case hasKey(n, "query") && hasKey(n, "form"):
			r.fail(n, "%s: what stands in the query has no form; leave form out", what)
		case hasKey(n, "user") && p.form != "basic":
			r.fail(n, "%s: a user belongs to form: basic; write that, or leave user out", what)
		}
	}
}

// writtenPlace is the place of a mapping.
func (r *reader) writtenPlace(n *yaml.Node, what string, w *placeWritten) credentials.Place {
	p := credentials.Place{Host: w.host, Header: w.header, Query: w.query}
	form := w.form
	if form == "" && strings.EqualFold(w.header, "Authorization") {
		form = "bearer"
	}
	switch form {
	case "bearer":
		p.Forms, p.Add = credentials.Bearer, "Bearer {}"
	case "token":
		p.Forms, p.Add = credentials.Token, "token {}"
	case "basic":
		p.Forms, p.Add = credentials.BasicPassword, "Basic "+cmp.Or(w.user, "x")+":{}"
	case "basic-user":
		p.Forms, p.Add = credentials.BasicUser, "Basic {}:"
	default:
		p.Forms, p.Add = credentials.Bare, "{}"
	}
	return p
}

// credentialHost reads one exact name.
func (r *reader) credentialHost(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		p, ok := parse(r, n, what, policy.ParsePattern)
		switch {
		case !ok:
		case !p.OneHost() || p.String() != p.Host():
			r.fail(n, "%s: %s is not one host without a port; write a name such as api.example.com", what, p)
		default:
			*into = p.Host()
		}
	}
}

// credentialFrom reads where a secret is read.
func (r *reader) credentialFrom(what string, s *credentials.Source) func(*yaml.Node) {
	return func(n *yaml.Node) {
		before := len(r.problems)
		r.mapping(n, what, fields{
			"file":    r.path(what+".file", &s.File),
			"field":   r.checked(what+".field", &s.Field, problemOfField),
			"profile": r.checked(what+".profile", &s.Profile, problemOfProfile),
			"env":     r.checked(what+".env", &s.Env, problemOfVariable),
			"command": r.command(what+".command", &s.Command),
			"refresh": r.refresh(what+".refresh", &s.Refresh),

			"oauth":      r.oauth(what+".oauth", &s.OAuth),
			"github_app": r.gitHubApp(what+".github_app", &s.GitHubApp),
		})
		if len(r.problems) > before {
			return
		}
		if s.Profile != "" && s.File == "" {
			s.File = "${HOME}/.aws/credentials"
		}
		sources := 0
		for _, set := range []bool{s.File != "", s.Env != "", s.Command != nil, s.OAuth != nil, s.GitHubApp != nil} {
			if set {
				sources++
			}
		}
		switch {
		case sources != 1:
			r.fail(n, "%s has to have one of file, env, command, oauth and github_app; write {file: github.token} or the like", what)
		case s.Field != "" && s.File == "":
			r.fail(n, "%s has a field, and no file that it is in; add file", what)
		}
	}
}

// foreign reads what becomes of other credentials.
func (r *reader) foreign(what string, into *[]policy.PathPattern) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			refuse := "refuse"
			word(r, what, &refuse, "refuse")(n)
			return
		}
		r.mapping(n, what, fields{"allow": func(n *yaml.Node) {
			for _, item := range r.condition(n, what+".allow") {
				if p, ok := parse(r, item, what+".allow", policy.ParsePathPattern); ok {
					*into = append(*into, p)
				}
			}
		}})
	}
}

// checkCredentialNames refuses two credentials that cannot be told apart, that would go to one host, or that would
// set one variable.
func (r *reader) checkCredentialNames(n *yaml.Node, all []NamedCredential) {
	names, hosts, variables := map[string]int{}, map[string]int{}, map[string]int{}
	taken := func(by map[string]int, key string, i int) (first *NamedCredential) {
		if before, twice := by[key]; twice && before != i {
			return &all[before]
		}
		by[key] = i
		return nil
	}
	for i := range all {
		c := &all[i]
		if first := taken(names, c.Spec.Name, i); first != nil {
			r.failAt(c.at, "two credentials are named %s, also the one in line %d; give one another name", c.Spec.Name, first.at.Line)
			continue
		}
		for _, host := range c.Spec.Hosts() {
			if first := taken(hosts, host, i); first != nil {
				r.failAt(c.at, "the credentials %s and %s both go to %s; keep one", first.Spec.Name, c.Spec.Name, host)
			}
		}
		for _, v := range c.Spec.Variables {
			if first := taken(variables, v.Name, i); first != nil {
				r.failAt(c.at, "the credentials %s and %s both set the variable %s; give one of them env, with other names", first.Spec.Name, c.Spec.Name, v.Name)
			}
		}
	}
}

// giveCredentials tells the rules under "allow" which credential their requests get.
func (r *reader) giveCredentials(f *File) {
	if len(r.problems) > 0 {
		return
	}
	used := make([]bool, len(f.Credentials))
	for i := range f.Allow {
		rule := &f.Allow[i]
		at := f.credentialOf(rule.Pattern)
		switch {
		case at < 0 || rule.Pattern == rule.Pattern.At(80):
		case rule.Inject != nil:
			r.failAt(rule.At, "%s has inject, and the credential %s goes to its host; remove one", rule.ID, f.Credentials[at].Spec.Name)
		case rule.AnyProtocol || rule.ECH:
			r.failAt(rule.At, "%s has tls or ech, which let pass what cannot be seen, and the credential %s goes to its host; remove one", rule.ID, f.Credentials[at].Spec.Name)
		default:
			rule.Credential, used[at] = f.Credentials[at].Spec.Name, true
		}
	}
	for i, c := range f.Credentials {
		if !used[i] {
			r.failAt(c.at, "the credential %s is never used: no rule under allow names exactly %s; add one", c.Spec.Name, strings.Join(examples(c.Spec.Hosts()), " or "))
		}
	}
}

// examples are hosts that a rule could name.
func examples(hosts []string) []string {
	out := slices.Clone(hosts)
	for i := range out {
		if strings.HasPrefix(out[i], ".") {
			out[i] = "a host such as storage" + out[i]
		}
	}
	return out
}

// credentialOf returns the index of the credential that goes to the one host of a pattern, or -1.
func (f *File) credentialOf(p policy.Pattern) int {
	found := -1
	if p == (policy.Pattern{}) || !p.OneHost() {
		return found
	}
	for i := range f.Credentials {
		spec := &f.Credentials[i].Spec
		if slices.Contains(spec.Hosts(), p.Host()) {
			return i
		}
		if spec.On(p.Host()) {
			found = i
		}
	}
	return found
}

// mints are the rules that deny the endpoints by which sandboxes would get new secrets.
func (f *File) mints() (all []policy.Rule) {
	for i := range f.Credentials {
		all = append(all, f.Credentials[i].Mints...)
	}
	return all
}

func problemOfParameter(name string) string {
	if len(name) > 64 || strings.ContainsFunc(name, func(c rune) bool { return c >= 0x80 || !policy.Unreserved(byte(c)) }) {
		return "is no plain name of a parameter; write one like key"
	}
	return ""
}

func problemOfRealm(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path == "" || !printableASCII(text) {
		return "is no URL of a token service; write one like https://auth.example.com/token"
	}
	return ""
}

func problemOfRegion(name string) string {
	if len(name) > 32 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return "is no region; write one like eu-west-1"
	}
	return ""
}

// problemOfBucket takes names that are the same in a path and in the name of a host.
func problemOfBucket(name string) string {
	if len(name) < 3 || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || strings.Trim(name, "-.") != name {
		return "is no bucket; write its whole name, like acme-build"
	}
	return ""
}

func problemOfAccount(id string) string {
	if len(id) != 12 || strings.Trim(id, "0123456789") != "" {
		return `is no account; write its twelve digits in quotes, like "123456789012"`
	}
	return ""
}

func problemOfProfile(name string) string {
	if len(name) > 128 || !printableASCII(name) || strings.ContainsAny(name, "[]") {
		return "is no profile; write one like agent"
	}
	return ""
}

func problemOfUser(name string) string {
	if len(name) > 64 || !printableASCII(name) || strings.ContainsAny(name, ":{}") {
		return "is no user: at most 64 printable ASCII characters without colons and braces"
	}
	return ""
}

func problemOfField(name string) string {
	if len(name) > 128 || !printableASCII(name) || slices.Contains(strings.Split(name, "."), "") {
		return "is no field of a JSON object; write one like token, or a.b for the field b of a"
	}
	return ""
}
