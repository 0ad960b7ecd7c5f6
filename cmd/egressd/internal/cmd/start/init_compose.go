package start

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/compose"
	"github.com/egressd/egressd/integrations/devcontainer"
	"github.com/egressd/egressd/integrations/sidecar"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/spf13/cobra"
)

func newInitComposeCommand(flags *planOptions) *cobra.Command {
	o := composeOptions{sidecarOptions: sidecarOptions{planOptions: flags, command: "egressd init compose", kind: "compose"}}
	cmd := &cobra.Command{
		Use:   "compose",
		Short: "Put egressd in front of the services of a Compose file",
		Long: `Init compose reads the compose file of the working directory and writes
compose.egressd.yaml beside it. That file adds egressd in a container of its own and
gives each service an internal network that leads to egressd alone. The policy can
list hosts for each service. No service can change the policy file.

It replaces an existing file only with --yes, and an existing policy never. A
service that no network could confine is an error, and so is every key that egressd
does not know. It judges the file as it is written, and as docker compose config
prints it if Compose is there. Files with extends or include need Compose 2.

If a dev container is one of the services (dockerComposeFile), it also writes
devcontainer.sh, which is devcontainer up for what was judged.`,
		Example: `  egressd init compose --print
  egressd init compose --service agent --allow registry.npmjs.org
  egressd init compose --allow web=example.com --allow worker=pypi.org`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := o.plan(cmd.Context())
			if err != nil {
				return err
			}
			if err := o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), plan); err != nil || !o.keeps {
				return err
			}
			for _, f := range o.judged {
				if err := writePlanned(f); err != nil {
					return hint.Failed(err, "the same as a user who may write "+f.Path)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.keeps, "keep-judged", false, "write what was judged beside the policy, as up.sh has it")
	_ = cmd.Flags().MarkHidden("keep-judged") // it exists
	cmd.Flags().StringVarP(&o.file, "file", "f", ".", "compose `FILE`, or its folder")
	cmd.Flags().StringSliceVar(&o.services, "service", nil, "`NAME` of a service to confine (default: all)")
	cmd.Flags().StringVar(&o.project, "project", "", "`NAME` of the Compose project (default: as Compose finds it)")
	cmd.Flags().BoolVar(&o.together, "together", false, "let services that name no network still reach each other")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "`FILE` to write (default: compose.egressd.yaml beside the compose file)")
	o.flags(cmd)
	return cmd
}

type composeOptions struct {
	sidecarOptions
	file, output string
	project      string
	services     []string
	together     bool
	unasked      string // what the engine could not say
	unresolved   string // why Compose did not read the file
	keeps        bool   // what was judged
	judged       []integrations.Made
}

func (o *composeOptions) plan(ctx context.Context) (set integrations.Set, err error) {
	file, err := compose.Read(o.file)
	if err != nil {
		return set, hint.Failed(err, "egressd init compose -f FILE")
	}
	dir := filepath.Dir(file.Path)
	written, project := file, projectName(file, dir)
	c := compose.Compose{Path: o.output, Workspace: workspaceOf(dir), Judges: runtime.GOOS == "linux", Together: o.together, Variables: composeVariables}
	file.Within(workspaceOf(dir))
	file.StartedByOne(compose.IsOne(ctx))
	if file.Composed() {
		if file, err = o.composed(ctx, file); err != nil {
			return set, err
		}
		c.Settled = file
	}
	c.File = file
	chosen, err := o.chosen(file)
	if err != nil {
		return set, err
	}
	if c.Path == "" {
		c.Path = filepath.Join(dir, "compose.egressd.yaml")
	}
	names := slices.DeleteFunc(slices.Clone(chosen), func(name string) bool { return file.Service(name).Shares() })
	if c.Sidecar, err = o.sidecar(project, dir, names); err != nil {
		return set, err
	}
	if err := o.found(written, &c); err != nil {
		return set, err
	}
	if err := o.judge(ctx, file, &c, chosen); err != nil {
		return set, err
	}
	if len(names) == 0 {
		return set, hint.Failed(errors.New("none of the services has a network"), "egressd enter, for containers without one")
	}
	if c.Again, err = o.again(&c); err != nil {
		return set, err
	}
	if set, err = c.Compose(); err != nil {
		return set, err
	}
	o.judged = c.Judged(set)
	if set, err = o.devContainer(set, &c, chosen); err != nil {
		return set, err
	}
	if all := file.Secrets(os.Environ(), c.Settled); len(all) > 0 {
		set.Notes = append(set.Notes, "the file names "+strings.Join(all, ", ")+": services may get the values of your environment; unset them, or let egressd add credentials to requests")
	}
	if o.unasked != "" {
		set.Notes = append(set.Notes, o.unasked)
	}
	if o.unresolved != "" {
		set.Notes = append(set.Notes, "judged as it is written, and not as Compose reads it: "+o.unresolved)
	}
	return o.keepPolicy(set, &c.Sidecar)
}

// devContainer adds the settings and the script of a dev container that is a service of the file. The copy of the settings counts until
// init compose runs again: up.sh does not read those of the project.
func (o *composeOptions) devContainer(set integrations.Set, c *compose.Compose, held []string) (integrations.Set, error) {
	if o.keeps || !c.Judges || c.Settled == nil {
		return set, nil
	}
	var dev *devcontainer.Composed
	var err error
	beside := filepath.Dir(c.File.Path)
	for _, folder := range []string{c.Workspace, beside, filepath.Dir(beside)} {
		if dev, err = devcontainer.OfCompose(folder, c.File.Path, c.JudgedFiles(), held); dev != nil || err != nil {
			break
		}
	}
	if refused := (*devcontainer.BoundaryError)(nil); errors.As(err, &refused) {
		set.Notes = append(set.Notes, fmt.Sprintf("no devcontainer.sh was written: %v; %s", refused, refused.Instead))
		return set, nil
	}
	if err != nil {
		return set, hint.Failed(err, "correct it, or mv it away")
	}
	if dev != nil {
		set.Files = append(set.Files, c.DevScript(dev.Folder, dev.Text)...)
		set.Notes = append(set.Notes, c.DevScriptPath()+" is devcontainer up for what up.sh starts, with the settings as they are now")
	}
	return set, nil
}

// composed is a file with extends, include or label_file, as Compose reads it.
func (o *composeOptions) composed(ctx context.Context, file *compose.File) (*compose.File, error) {
	p, err := file.FindProject(o.project)
	if err != nil {
		return nil, hint.Misused(err, o.command+" --project NAME")
	}
	p = p.Started()
	file.Call(p, p.Has, p.Volume)
	file.Avoid(routesElsewhere())
	resolved, err := file.Resolved(ctx, p.Name)
	switch {
	case err != nil:
		return nil, hint.Failed(err, "correct it, and this once more")
	case resolved == nil || resolved.Text == nil:
		return nil, hint.Failed(fmt.Errorf("%s has extends, include or label_file, and only Compose 2 can say what that comes to", file.Path), "apt install docker-compose-plugin, or write the services into one file")
	}
	return resolved, nil
}

// again is this command, by whole paths.
func (o *composeOptions) again(c *compose.Compose) ([]string, error) {
	output, err := filepath.Abs(c.Path)
	if err != nil {
		return nil, hint.Failed(err, o.command+" -o FILE")
	}
	c.Path = output
	argv := []string{c.Program, "init", "compose", "-f", c.File.Path, "-o", output, "--policy", c.Folder, "--image", o.image}
	for _, name := range o.services {
		argv = append(argv, "--service", name)
	}
	if o.project != "" {
		argv = append(argv, "--project", o.project)
	}
	if o.together {
		argv = append(argv, "--together")
	}
	pool := o.subnet
	if pool == "" && len(c.Sandboxes) > 0 { // the one that was chosen
		pool = netip.PrefixFrom(c.Sandboxes[0].Subnet.Addr(), sidecar.PoolBits).String()
	}
	return append(argv, "--subnet", pool, "--keep-judged"), nil
}

// judge refuses what egressd would not hold, in the file as it is written and as Compose reads it.
func (o *composeOptions) judge(ctx context.Context, file *compose.File, c *compose.Compose, chosen []string) error {
	own, err := config.Places("")
	if none := (*config.NotFoundError)(nil); err != nil && !errors.As(err, &none) {
		return err // where egressd's own files are, it says
	}
	m := hostpaths.ProjectMachine(workspaceOf(filepath.Dir(file.Path)), "", own)
	m.Own = append(m.Own, c.Folder)
	compose.AskEngine(m)
	m.Images = append([]string{o.image, c.Image}, sameImages(file, c.Image)...)
	problems := file.Problems(m, chosen)
	if len(problems) == 0 && c.Settled == nil {
		resolved, err := file.Resolved(ctx, file.Name)
		switch {
		case err != nil && (o.keeps || errors.Is(err, compose.ErrInput)): // it would not start, or a service takes away what Compose reads until egressd has judged
			return hint.Failed(err, "correct it, and this once more")
		case err != nil: // the file was judged as it is written
			o.unresolved = err.Error()
		}
		if resolved != nil {
			m.Images = append(m.Images, sameImages(resolved, c.Image)...)
			problems = resolved.Problems(m, chosen)
			if resolved.Text != nil {
				c.Settled = resolved
			}
		}
	}
	if len(problems) > 0 {
		return hint.Failed(fmt.Errorf("no network would hold these:\n%s", strings.Join(problems, "\n")), "change that in "+file.Path+", or hold others: "+o.command+" --service NAME")
	}
	return nil
}

// sameImages returns the images that a Compose file gives the image with that ID, by name or by a part of the ID.
func sameImages(file *compose.File, id string) (all []string) {
	for _, name := range file.Images() {
		if pinned(name) == id {
			all = append(all, name)
		}
	}
	return all
}

// workspaceOf returns the git repository that a folder lies in, or the folder: a compose file may lie below the root of its
// project.
func workspaceOf(dir string) string {
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
	}
	return dir
}

// found is the project, which has to be of this folder.
func (o *composeOptions) found(file *compose.File, c *compose.Compose) error {
	dir, next := filepath.Dir(file.Path), o.command+" --project NAME"
	p, err := file.FindProject(o.project)
	if err != nil {
		return hint.Misused(err, next)
	}
	c.Named = p
	started := p.Started()
	file.Call(started, started.Has, started.Volume)
	file.Avoid(routesElsewhere())
	if script, err := os.ReadFile(c.ScriptPath()); err == nil && p.Starts(script, dir) {
		c.Named.Chosen = true
	}
	why, asked := c.Named.Taken(dir)
	if why != "" && o.project == "" {
		return hint.Failed(fmt.Errorf("the project %s would share networks and volumes with another one: %s", p.Name, why), next+", another one; or "+o.command+" --project "+p.Name+" if all of that is this project's")
	}
	if !asked && !c.Named.Chosen {
		o.unasked = "a file of the project called it " + p.Name + ", and no engine could be asked whether another project has that name: look at docker volume ls"
	}
	return nil
}

// projectName returns the name that the file gives its project, or that of its folder.
func projectName(file *compose.File, dir string) string {
	if file.Name != "" && plainWord(file.Name) == file.Name {
		return file.Name
	}
	return filepath.Base(dir)
}

// chosen are the services that are to be held.
func (o *composeOptions) chosen(file *compose.File) ([]string, error) {
	var all []string
	for i := range file.Services {
		all = append(all, file.Services[i].Name)
	}
	if len(o.services) == 0 {
		return all, nil
	}
	for _, name := range o.services {
		if !slices.Contains(all, name) {
			return nil, hint.Misused(fmt.Errorf("%s: there is no service %s in %s", o.command, printable.Text(name), file.Path), o.command+" --service "+strings.Join(all, ","))
		}
	}
	return o.services, nil
}

// composeVariables are those of egressd env.
func composeVariables(proxy string) (all []integrations.Variable, err error) {
	vars, _, err := environ.ForProxy(proxy, nil)
	for _, v := range vars {
		all = append(all, integrations.Variable{Name: v.Name, Value: v.Value})
	}
	return all, err
}

// sidecarOptions are those of what has egressd in a container in front of others.
type sidecarOptions struct {
	*planOptions
	command, kind         string
	image, folder, subnet string
	allow, presets        []string
}

func (o *sidecarOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.image, "image", "egressd:latest", "`NAME` of egressd's image")
	cmd.Flags().StringVar(&o.folder, "policy", "", "`FOLDER` of the policy (default: egressd/"+o.kind+"/PROJECT in the user's configuration)")
	cmd.Flags().StringVar(&o.subnet, "subnet", "", "private IPv4 `PREFIX` that the networks are pieces of (default: one below 10.128.0.0/10 that this host does not use)")
	cmd.Flags().StringSliceVar(&o.allow, "allow", nil, "`HOST` that all may reach, or NAME=HOST for one alone")
	cmd.Flags().StringSliceVar(&o.presets, "preset", nil, "`NAME` of a set of rules, such as npm")
}

func (o *sidecarOptions) sidecar(project, dir string, names []string) (s sidecar.Sidecar, err error) {
	if err := checkImage(o.image, o.command); err != nil {
		return s, err
	}
	s = sidecar.Sidecar{Project: cmp.Or(plainWord(project), "project"), Image: pinned(o.image), Presets: o.presets}
	if s.Program, err = os.Executable(); err != nil {
		return s, hint.Failed(err, o.command+", by its whole path")
	}
	if s.Folder, err = o.policyFolder(s.Project); err != nil {
		return s, err
	}
	subnets, err := o.subnets(dir, len(names))
	if err != nil {
		return s, err
	}
	for i, name := range names {
		if name == "egressd" || plainWord(name) != name {
			return s, hint.Failed(fmt.Errorf("%s: a sandbox cannot be called that", printable.Text(name)), o.command+" with another name")
		}
		s.Sandboxes = append(s.Sandboxes, sidecar.SandboxNetwork{Name: name, Subnet: subnets[i]})
	}
	return s, o.divide(&s)
}

// pinned returns the ID of an image of the engine. Another image can get the same name, but never the same ID. pinned
// returns the name if no engine has the image.
func pinned(image string) string {
	out, err := exec.Command("docker", "image", "inspect", "--format", "{{.Id}}", "--", image).Output()
	if id := strings.TrimSpace(string(out)); err == nil && strings.HasPrefix(id, "sha256:") {
		return id
	}
	return image
}

func (o *sidecarOptions) policyFolder(project string) (string, error) {
	if o.folder != "" {
		return filepath.Abs(o.folder)
	}
	return filepath.Join(filepath.Dir(config.SearchPath()[0]), o.kind, project), nil
}

// plainWord is text with nothing in it but what a name of Docker can have.
func plainWord(text string) string {
	word := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, text)
	return strings.TrimLeft(word, "-_.")
}

// divide has --allow count for all, or for one. Where it counts for one, each has a list of
// its own.
func (o *sidecarOptions) divide(s *sidecar.Sidecar) error {
	own := make(map[string][]string)
	var all []string
	for _, one := range o.allow {
		name, host, is := strings.Cut(one, "=")
		if !is {
			host = one
			all = append(all, host)
		} else {
			own[name] = append(own[name], host)
		}
		if _, err := policy.ParsePattern(host); err != nil {
			return hint.Misused(err, o.command+" --allow example.com")
		}
		if !slices.Contains(s.Allow, host) {
			s.Allow = append(s.Allow, host)
		}
	}
	if len(own) > 0 && len(o.presets) > 0 {
		return hint.Misused(errors.New("--allow NAME=HOST gives each a list of its own, which takes no --preset"), o.command+" --preset npm --allow HOST, and lists of their own in the policy")
	}
	each := len(own) > 0
	for i := range s.Sandboxes {
		if h := &s.Sandboxes[i]; each {
			h.Allow = append(append([]string{}, all...), own[h.Name]...)
			delete(own, h.Name)
		}
	}
	for name := range own {
		return hint.Misused(fmt.Errorf("--allow: there is no %s among those that are held", printable.Text(name)), o.command+" --allow NAME=HOST")
	}
	return nil
}

// subnets are networks that this host does not have.
func (o *sidecarOptions) subnets(word string, count int) ([]netip.Prefix, error) {
	next := o.command + " --subnet 10.140.16.0/20"
	if o.subnet != "" {
		pool, err := netip.ParsePrefix(o.subnet)
		if err == nil {
			var all []netip.Prefix
			if all, err = sidecar.Subnets(pool, count); err == nil {
				return all, nil
			}
		}
		return nil, hint.Misused(fmt.Errorf("--subnet: %w", err), next)
	}
	taken, err := hostPrefixes()
	if err != nil {
		return nil, hint.Failed(err, next)
	}
	for _, pool := range sidecar.Pools(word) {
		all, err := sidecar.Subnets(pool, count)
		if err != nil {
			return nil, hint.Failed(err, o.command+" --subnet 10.128.0.0/16")
		}
		// A network that is just one of these was made after an earlier file.
		if !slices.ContainsFunc(taken, func(p netip.Prefix) bool { return p.Overlaps(pool) && !slices.Contains(all, p) }) {
			return all, nil
		}
	}
	return nil, hint.Failed(errors.New("this host uses all of 10.128.0.0/10"), next)
}

func hostPrefixes() (all []netip.Prefix, err error) {
	addrs, err := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all, err
}

// routesElsewhere are the prefixes that this host has routes to, but for the default, and for bridges: engines make these.
func routesElsewhere() (all []netip.Prefix) {
	text, err := os.ReadFile("/proc/net/route")
	if err != nil { // another system than Linux, whose engine has a machine of its own
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		to, okTo := routeWord(f[1])
		mask, okMask := routeWord(f[7])
		if _, err := os.Stat(filepath.Join("/sys/class/net", f[0], "bridge")); err == nil || !okTo || !okMask || mask == 0 {
			continue
		}
		a := [4]byte{byte(to >> 24), byte(to >> 16), byte(to >> 8), byte(to)}
		all = append(all, netip.PrefixFrom(netip.AddrFrom4(a), bits.OnesCount32(mask)))
	}
	return all
}

// routeWord reads an address of /proc/net/route, which is in the order of the machine.
func routeWord(text string) (word uint32, ok bool) {
	n, err := strconv.ParseUint(text, 16, 32)
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(n))
	return binary.BigEndian.Uint32(b[:]), err == nil
}

// keepPolicy leaves out a policy that is there and that fits: it is the operator's.
func (o *sidecarOptions) keepPolicy(set integrations.Set, s *sidecar.Sidecar) (integrations.Set, error) {
	path := s.PolicyPath()
	text, err := config.Read(path)
	if errors.Is(err, fs.ErrNotExist) || o.print {
		return set, nil
	}
	if err != nil {
		return set, hint.Failed(err, o.command+" --policy FOLDER")
	}
	file, err := file.Parse(path, text)
	if err != nil {
		return set, hint.Failed(err, "correct it, or "+o.command+" --policy FOLDER, for another one")
	}
	for _, h := range s.Sandboxes {
		if missing := missingIn(file, h); missing != "" {
			return set, hint.Failed(fmt.Errorf("%s is there and left as it is, and it does not have %s", path, missing), o.command+" --policy "+shell.Word(filepath.Dir(path)+"-2")+", if the policy is that of another project; else add that (egressd init "+o.kind+" --print shows it in its place)")
		}
	}
	set.Files = slices.DeleteFunc(set.Files, func(f integrations.Made) bool { return f.Path == path })
	set.Notes = append([]string{path + " is there and left as it is" + o.unheard()}, set.Notes...)
	return set, nil
}

func (o *sidecarOptions) unheard() string {
	if len(o.allow)+len(o.presets) == 0 {
		return ""
	}
	return "; --allow and --preset did not count"
}

// missingIn is what a policy lacks for a sandbox, or "".
func missingIn(f *file.File, h sidecar.SandboxNetwork) string {
	proxies := without(h.Proxies(), f.Listen.Proxy)
	resolvers := without(h.Resolvers(), f.Listen.DNS)
	switch {
	case len(proxies) > 0:
		return strings.Join(proxies, ", ") + " in listen.proxy"
	case len(resolvers) > 0:
		return strings.Join(resolvers, ", ") + " in listen.dns"
	case !slices.ContainsFunc(f.Sandboxes, func(s file.SandboxRules) bool { return slices.Contains(s.Sources, h.Subnet) }):
		return fmt.Sprintf("the sandbox {name: %s, source: [%s]}", h.Name, h.Subnet)
	}
	return ""
}

// without returns the elements of all that some does not have.
func without(all, some []string) []string {
	return slices.DeleteFunc(all, func(one string) bool { return slices.Contains(some, one) })
}
