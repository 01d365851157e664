#Requires -Version 7.2
#Requires -Modules @{ ModuleName = 'Pester'; ModuleVersion = '5.5' }
# Run with: Invoke-Pester infra/tests
# Az is replaced (Azure.ps1): what is asked of Azure is tested here, what Azure then does is not.

BeforeAll {
    . (Join-Path $PSScriptRoot 'Azure.ps1')
    $create = Join-Path $PSScriptRoot '../create.ps1'
    $payer = [guid] '11111111-1111-1111-1111-111111111111'
    $admin = [guid] '22222222-2222-2222-2222-222222222222'
    $clientId = [guid] '00112233-4455-6677-8899-aabbccddeeff'
    $subnet = '/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/net/subnets/data'
    $schemaFile = Join-Path $TestDrive 'schema.sql'
    Set-Content -LiteralPath $schemaFile -Value "CREATE TABLE dbo.Jobs (Id int);`nGO"
    $changes = @((Get-Command -Name 'New-Az*', 'Set-AzSql*', 'Remove-Az*', 'Enable-Az*', 'Invoke-Sqlcmd' -CommandType Function).Name)
    $there = [pscustomobject] @{ Name = 'there' }
}

Describe 'create.ps1' {
    BeforeEach {
        foreach ($name in (Get-Command -Name '*-Az*', 'Invoke-Sqlcmd' -CommandType Function).Name) {
            Mock -CommandName $name
        }
        Mock Get-AzContext { [pscustomobject] @{ Account = [pscustomobject] @{ Type = 'User'; Id = 'dba@example.com' } } }
        Mock Get-AzADUser { [pscustomobject] @{ DisplayName = 'A DBA'; Id = "$admin" } }
        Mock Get-AzAccessToken { [pscustomobject] @{ Token = 'a token' } }
        Mock New-AzUserAssignedIdentity { [pscustomobject] @{ ClientId = "$clientId"; TenantId = 'tenant' } }
        Mock New-AzPrivateDnsZone { [pscustomobject] @{ ResourceId = '/the/zone' } }
        Mock Start-Sleep
    }

    Context 'where nothing is there' {
        It 'creates everything, and says where it is' {
            $result = & $create -SubscriptionId $payer -SchemaFile $schemaFile
            Should -Invoke Set-AzContext -Times 1 -Exactly -ParameterFilter { $Subscription -eq "$payer" -and $Scope -eq 'Process' }
            Should -Invoke New-AzResourceGroup -Times 1 -Exactly -ParameterFilter {
                $Name -eq 'cristp-reltaskexec' -and $Location -eq 'west us2'
            }
            Should -Invoke New-AzSqlServer -Times 1 -Exactly -ParameterFilter {
                $EnableActiveDirectoryOnlyAuthentication -and $ExternalAdminSID -eq $admin -and $MinimalTlsVersion -eq '1.2'
            }
            Should -Invoke New-AzSqlDatabase -Times 1 -Exactly -ParameterFilter {
                $ComputeModel -eq 'Serverless' -and $AutoPauseDelayInMinutes -eq -1 -and $MinimumCapacity -eq 0.5
            }
            Should -Invoke New-AzUserAssignedIdentity -Times 1 -Exactly
            Should -Invoke New-AzSqlServerFirewallRule -Times 0 -Exactly
            $result.DatabaseUrl | Should -Match "^mssql://sqlbeat-[0-9a-f]{13}\.database\.windows\.net/sqlbeat\?identity=managed&client_id=$clientId`$"
            $result.ClientId | Should -Be "$clientId"
        }

        It 'applies the schema, then the role, then its member, over an encrypted connection' {
            $script:queries = @()
            Mock Invoke-Sqlcmd { $script:queries += $Query } -ParameterFilter { $Encrypt -eq 'Mandatory' -and $DisableVariables }
            & $create -SubscriptionId $payer -SchemaFile $schemaFile
            $queries | Should -HaveCount 4
            $queries[0] | Should -Be 'SELECT 1'
            $queries[1] | Should -Match 'CREATE TABLE dbo.Jobs'
            $queries[2] | Should -Match 'CREATE ROLE sqlbeat_runner'
            $queries[3] | Should -Match 'CREATE USER \[sqlbeat-runner\] WITH SID = 0x33221100554477668899AABBCCDDEEFF, TYPE = E'
            $queries[3] | Should -Match 'ALTER ROLE sqlbeat_runner ADD MEMBER \[sqlbeat-runner\]'
        }

        It 'names the same server each time' {
            $first = & $create -SubscriptionId $payer -SkipSchema
            $second = & $create -SubscriptionId $payer -SkipSchema
            $other = & $create -SubscriptionId $payer -SkipSchema -ResourceGroupName 'other'
            $second.HostName | Should -Be $first.HostName
            $other.HostName | Should -Not -Be $first.HostName
        }

        It 'waits for a database that does not answer yet' {
            $script:tries = 0
            Mock Invoke-Sqlcmd { if (++$script:tries -lt 3) { throw 'not yet' } }
            & $create -SubscriptionId $payer -SchemaFile $schemaFile
            Should -Invoke Start-Sleep -Times 2 -Exactly
        }

        It 'gives up on a database that never answers' {
            Mock Invoke-Sqlcmd { throw 'never' }
            { & $create -SubscriptionId $payer -SchemaFile $schemaFile } | Should -Throw 'never'
        }

        It 'gives a private endpoint, and nothing on the internet' {
            Mock Get-AzSqlServer { [pscustomobject] @{ ResourceId = '/the/server'; PublicNetworkAccess = 'Disabled' } }
            Mock Get-AzSqlServerActiveDirectoryAdministrator { [pscustomobject] @{ ObjectId = "$admin" } }
            Mock Get-AzSqlServerActiveDirectoryOnlyAuthentication { [pscustomobject] @{ AzureADOnlyAuthentication = $true } }
            & $create -SubscriptionId $payer -SubnetId $subnet -SkipSchema
            Should -Invoke New-AzPrivateLinkServiceConnection -Times 1 -Exactly -ParameterFilter {
                $PrivateLinkServiceId -eq '/the/server' -and $GroupId -eq 'sqlServer'
            }
            Should -Invoke New-AzPrivateEndpoint -Times 1 -Exactly
            Should -Invoke New-AzPrivateDnsVirtualNetworkLink -Times 1 -Exactly -ParameterFilter {
                $VirtualNetworkId -eq ($subnet -replace '/subnets/data$', '')
            }
            Should -Invoke New-AzPrivateDnsZoneGroup -Times 1 -Exactly
            Should -Invoke New-AzSqlServerFirewallRule -Times 0 -Exactly
        }

        It 'lets a service account of Kubernetes act as the identity' {
            $result = & $create -SubscriptionId $payer -SkipSchema -OidcIssuer 'https://issuer.example/' -ServiceAccount 'shop:sqlbeat'
            $result.DatabaseUrl | Should -Match '\?identity=workload$'
            Should -Invoke New-AzFederatedIdentityCredential -Times 1 -Exactly -ParameterFilter {
                $Subject -eq 'system:serviceaccount:shop:sqlbeat' -and $Issuer -eq 'https://issuer.example/'
            }
        }

        It 'changes nothing with -WhatIf' {
            & $create -SubscriptionId $payer -SchemaFile $schemaFile -AllowIpAddress 203.0.113.7 -AllowAzureServices -WhatIf
            foreach ($name in $changes) {
                Should -Invoke $name -Times 0 -Exactly
            }
        }
    }

    Context 'where everything is there' {
        BeforeEach {
            Mock Get-AzResourceGroup { $there }
            Mock Get-AzSqlServer { [pscustomobject] @{ ResourceId = '/the/server'; PublicNetworkAccess = 'Enabled' } }
            Mock Get-AzSqlServerActiveDirectoryAdministrator { [pscustomobject] @{ ObjectId = "$admin" } }
            Mock Get-AzSqlServerActiveDirectoryOnlyAuthentication { [pscustomobject] @{ AzureADOnlyAuthentication = $true } }
            Mock Get-AzSqlDatabase { [pscustomobject] @{ CurrentServiceObjectiveName = 'GP_S_Gen5_2' } }
            Mock Get-AzUserAssignedIdentity { [pscustomobject] @{ ClientId = "$clientId"; TenantId = 'tenant' } }
            Mock Get-AzSqlServerFirewallRule {
                [pscustomobject] @{ FirewallRuleName = 'sqlbeat-203.0.113.7'; StartIpAddress = '203.0.113.7' }
                [pscustomobject] @{ FirewallRuleName = 'office'; StartIpAddress = '198.51.100.1' }
            }
        }

        It 'creates nothing a second time' {
            & $create -SubscriptionId $payer -SkipSchema -AllowIpAddress 203.0.113.7
            foreach ($name in $changes) {
                Should -Invoke $name -Times 0 -Exactly
            }
        }

        It 'closes the firewall for an address that is no longer named, and leaves rules of others alone' {
            & $create -SubscriptionId $payer -SkipSchema
            Should -Invoke Remove-AzSqlServerFirewallRule -Times 1 -Exactly
            Should -Invoke Remove-AzSqlServerFirewallRule -Times 1 -Exactly -ParameterFilter { $FirewallRuleName -eq 'sqlbeat-203.0.113.7' }
        }

        It 'moves the database to another tier' {
            & $create -SubscriptionId $payer -SkipSchema -AllowIpAddress 203.0.113.7 -Tier Provisioned -VCores 4
            Should -Invoke Set-AzSqlDatabase -Times 1 -Exactly -ParameterFilter {
                $ComputeModel -eq 'Provisioned' -and $VCore -eq 4 -and $PesterBoundParameters.Keys -notcontains 'MinimumCapacity'
            }
        }

        It 'turns SQL logins off where somebody has turned them on' {
            Mock Get-AzSqlServerActiveDirectoryOnlyAuthentication { [pscustomobject] @{ AzureADOnlyAuthentication = $false } }
            & $create -SubscriptionId $payer -SkipSchema -AllowIpAddress 203.0.113.7
            Should -Invoke Enable-AzSqlServerActiveDirectoryOnlyAuthentication -Times 1 -Exactly
        }
    }

    Context 'with wrong parameters' {
        It 'refuses <Name>' -ForEach @(
            @{ Name = 'half of an admin'; Wrong = @{ EntraAdminName = 'somebody' } }
            @{ Name = 'half of a service account'; Wrong = @{ ServiceAccount = 'shop:sqlbeat' } }
            @{ Name = 'a schema file that is not there'; Wrong = @{ SchemaFile = 'nowhere.sql' } }
            @{ Name = 'a name that could end a quoted one'; Wrong = @{ IdentityName = 'a]; DROP' } }
            @{ Name = 'a firewall rule for a private server'; Wrong = @{ SubnetId = '/x/subnets/y'; AllowAzureServices = $true } }
        ) {
            { & $create -SubscriptionId $payer @Wrong } | Should -Throw
            foreach ($name in $changes) {
                Should -Invoke $name -Times 0 -Exactly
            }
        }

        It 'says how to sign in' {
            Mock Get-AzContext
            { & $create -SubscriptionId $payer -SkipSchema } | Should -Throw '*Connect-AzAccount*'
        }
    }
}
