{{- define "trimtab.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains "trimtab" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-trimtab" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.selectorLabels" -}}
app.kubernetes.io/name: trimtab-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "trimtab.labels" -}}
{{ include "trimtab.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: trimtab
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "trimtab.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "trimtab.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* Image of a role's pods, where the role has none of its own. */}}
{{- define "trimtab.roleImage" -}}
{{- $images := .root.Values.defaults.images -}}
{{- $repository := ternary $images.control $images.worker (has .role (list "coordinator" "reward")) -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion $images.tag) -}}
{{- end -}}

{{/* The most GPUs that a job may ask for, as CEL; 0: no cap. */}}
{{- define "trimtab.gpuCap" -}}
{{- $caps := list -}}
{{- range $namespace, $cap := .Values.admissionPolicy.maxGpusPerJobIn -}}
{{- $caps = append $caps (printf "'%s': %d" $namespace (int $cap)) -}}
{{- end -}}
{{- $default := int .Values.admissionPolicy.maxGpusPerJob -}}
{{- if $caps -}}
{{- $map := printf "{%s}" (join ", " $caps) -}}
request.namespace in {{ $map }} ? {{ $map }}[request.namespace] : {{ $default }}
{{- else -}}
{{ $default }}
{{- end -}}
{{- end -}}

{{/* The operator's configuration: trimtab_operator.model.resolved.Settings as JSON. */}}
{{- define "trimtab.settings" -}}
{{- $roles := dict -}}
{{- range $role := list "coordinator" "actor" "critic" "rollout" "reward" -}}
{{- $own := deepCopy (default dict (get $.Values.defaults.roles $role)) -}}
{{- $base := dict "image" (include "trimtab.roleImage" (dict "root" $ "role" $role)) "imagePullPolicy" $.Values.defaults.images.pullPolicy -}}
{{- $_ := set $roles $role (mergeOverwrite $base $own) -}}
{{- end -}}
{{- $d := .Values.defaults -}}
{{- dict
  "operatorVersion" .Chart.AppVersion
  "roles" $roles
  "imagePullSecrets" $d.imagePullSecrets
  "priorityClassName" $d.priorityClassName
  "runtimeClassName" $d.runtimeClassName
  "schedulerName" $d.schedulerName
  "proxy" $d.proxy
  "caBundleConfigMap" $d.caBundleConfigMap
  "runAsUser" ($d.runAsUser | int)
  "runAsGroup" ($d.runAsGroup | int)
  "fsGroup" $d.fsGroup
  "operatorNamespace" .Release.Namespace
  "operatorLabels" (include "trimtab.selectorLabels" . | fromYaml)
  "clusterDomain" $d.clusterDomain
  "networkPolicy" $d.networkPolicy.enabled
  "metricsFrom" $d.networkPolicy.metricsFrom
  "egress" $d.networkPolicy.egress
  "imagePullDeadlineS" ($d.imagePullDeadlineSeconds | int)
  "terminatingDeadlineS" ($d.terminatingDeadlineSeconds | int)
  "backoffS" ($d.backoffSeconds | int)
  "maxBackoffS" ($d.maxBackoffSeconds | int)
  | toPrettyJson -}}
{{- end -}}

{{/* What the operator may do with jobs and what it makes of them, the same in every mode. */}}
{{- define "trimtab.jobRules" -}}
- apiGroups: [trimtab.dev]
  resources: [rltrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [trimtab.dev]
  resources: [rltrainingjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
