package boundary

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations/hostfiles"
)

// homeSecrets are files and folders of a home with keys, passwords and sessions, also of browsers and agents. A container
// that only reads one of these may act for the user wherever egressd lets it go.
const homeSecrets = `.ssh .gnupg .config/egressd .local/state/egressd .local/share/egressd .docker/config.json .docker/contexts .config/containers .local/share/docker .local/share/containers
	.aws .azure .oci .kube .config/gcloud .boto .s3cfg .config/rclone .config/doctl .fly .config/heroku .databrickscfg .snowflake .cloudflared .wrangler .vault-token
	.terraform.d .terraformrc .netrc .git-credentials .config/git/credentials .config/gh .config/hub .config/glab-cli
	.npmrc .yarnrc .yarnrc.yml .pypirc .config/pypoetry .cargo/credentials .cargo/credentials.toml .gem/credentials .bundle/config .composer/auth.json
	.config/composer/auth.json .m2/settings.xml .m2/settings-security.xml .gradle/gradle.properties .nuget/NuGet .config/NuGet
	.pgpass .my.cnf .mylogin.cnf .password-store .local/share/keyrings .local/share/kwalletd .pki .config/op .config/1Password .config/Bitwarden .config/keepassxc
	.mozilla .thunderbird .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge .config/vivaldi .config/opera .var/app snap
	.config/Code .config/Cursor .config/Slack .claude.json .claude/.credentials.json .claude/projects .codex/auth.json .codex/sessions .gemini/oauth_creds.json .config/github-copilot .local/share/opencode
	.local/share/amp .qwen .cursor .vscode-server/data .ollama/id_ed25519 .cache/huggingface/token .huggingface .kaggle .modal.toml .config/wandb
	.config/sops .config/age .step .acme.sh .minikube .pulumi .config/hcloud .config/scw .config/linode-cli .config/stripe .config/netlify .config/configstore .vercel
	.local/share/com.vercel.cli .railway .supabase .sentryclirc .config/ngrok .jfrog .ivy2/.credentials .sbt/.credentials .config/pnpm/rc .android/adbkey
	.msmtprc .fetchmailrc .local/share/evolution .config/Signal .config/discord .local/share/TelegramDesktop .config/solana .electrum .bitcoin .ethereum
	.bash_history .zsh_history .python_history .psql_history .mysql_history .local/share/fish .viminfo
	Library AppData`

// systemSecrets are those of the machine.
const systemSecrets = `/etc/shadow /etc/gshadow /etc/ssh /etc/ssl/private /etc/wireguard /etc/NetworkManager /etc/krb5.keytab /etc/kubernetes /etc/rancher /var/backups
	/var/lib/kubelet /var/lib/rancher`

// isSecret reports whether a path is, holds, or lies in one of these. Some file systems take upper and lower case as the same,
// so it does, too.
func (p *Machine) isSecret(real string) bool {
	lower := strings.ToLower(real)
	meets := func(secret string) bool {
		secret = strings.ToLower(secret)
		return hostfiles.Under(secret, lower) || hostfiles.Under(lower, secret)
	}
	if slices.ContainsFunc(strings.Fields(systemSecrets), meets) {
		return true
	}
	for _, pattern := range []string{"/home/*", "/Users/*", "/mnt/?/Users/*"} {
		if others, _ := filepath.Glob(pattern); slices.ContainsFunc(others, func(home string) bool { return hostfiles.Under(home, real) && home != real }) { // the pattern is sound
			return true
		}
	}
	return slices.ContainsFunc(p.homes(real), func(home string) bool {
		if hostfiles.Under(strings.ToLower(home), lower) {
			return true // all of it
		}
		return slices.ContainsFunc(strings.Fields(homeSecrets), func(s string) bool { return meets(filepath.Join(home, s)) })
	})
}

// homes are the home of the user, and that of another user which a path lies in.
func (p *Machine) homes(real string) (all []string) {
	if filepath.IsAbs(p.Home) && p.Home != "/" {
		all = append(all, hostfiles.ResolveLinks(p.Home))
	}
	parts := strings.Split(strings.TrimPrefix(filepath.Clean(real), "/"), "/")
	users := map[string]int{"root": 0, "home": 1, "users": 1} // how many names follow
	if len(parts) > 2 && parts[0] == "mnt" && len(parts[1]) == 1 {
		if strings.EqualFold(parts[2], "users") && len(parts) > 3 {
			all = append(all, "/"+filepath.Join(parts[:4]...))
		}
	} else if more, ok := users[strings.ToLower(parts[0])]; ok && len(parts) > more {
		all = append(all, "/"+filepath.Join(parts[:more+1]...))
	}
	return all
}

// secretWords are parts of names of variables that hold keys and passwords.
const secretWords = "TOKEN SECRET PASS KEY CREDENTIAL AUTH"

// IsSecretVariable reports whether a variable of an environment holds a secret, by its name.
func IsSecretVariable(name string) bool {
	return slices.ContainsFunc(strings.Fields(secretWords), func(w string) bool { return strings.Contains(strings.ToUpper(name), w) })
}
